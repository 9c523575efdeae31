"""Certificates that Kubernetes accepts are proven by the control plane; here are the properties it would not miss."""

from __future__ import annotations

import json
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from e2e.lab.pki import Authority, kubeconfig, write_private


def test_a_private_file_is_its_owners_alone_even_where_a_public_one_was(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_serving_certificate_names_addresses_as_addresses() -> None:
    pair = Authority("ca").issue_server("api", ["10.0.0.1", "kubernetes.default.svc"])
    names = x509.load_pem_x509_certificate(pair.certificate).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert [str(address) for address in names.value.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    assert names.value.get_values_for_type(x509.DNSName) == ["kubernetes.default.svc"]


def test_a_client_certificate_cannot_serve() -> None:
    certificate = x509.load_pem_x509_certificate(Authority("ca").issue_client("system:node:a").certificate)
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    assert list(usage.value) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_a_kubeconfig_is_complete_in_itself() -> None:
    text = kubeconfig(server="https://127.0.0.1:1", authority=b"ca", credential="secret", namespace="tenant-a")
    document = json.loads(text)
    assert document["users"][0]["user"] == {"token": "secret"}
    assert document["contexts"][0]["context"]["namespace"] == "tenant-a"
    assert "certificate-authority-data" in document["clusters"][0]["cluster"]

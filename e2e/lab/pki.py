"""The lab's certificates and kubeconfigs: one authority per control plane, made in memory, written where programs read.

Elliptic-curve keys, because a control plane needs a dozen and RSA would cost seconds. Certificates are valid from an
hour ago (guests' clocks may be behind) for a year. Nothing here starts a program or speaks to an API.
"""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = dt.timedelta(days=365)
CLOCK_SKEW = dt.timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where a certificate and its key were written."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A certificate and its private key, PEM."""

    certificate: bytes
    key: bytes

    def write(self, directory: Path, name: str) -> Files:
        """Writes ``NAME.crt`` and ``NAME.key`` (mode 0600)."""
        files = Files(certificate=directory / f"{name}.crt", key=directory / f"{name}.key")
        files.certificate.write_bytes(self.certificate)
        write_private(files.key, self.key)
        return files


class Authority:
    """A certificate authority that issues serving and client certificates."""

    def __init__(self, common_name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = _name(common_name)
        self._certificate = (
            _builder(name, self._key.public_key())
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pair(self) -> KeyPair:
        """Its own certificate and key, for programs that sign with it."""
        return KeyPair(certificate=_pem(self._certificate), key=_key_pem(self._key))

    def issue_server(self, common_name: str, hosts: Sequence[str]) -> KeyPair:
        """A serving certificate for these host names and IP addresses."""
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        return self._issue(_name(common_name), ExtendedKeyUsageOID.SERVER_AUTH, names)

    def issue_client(self, user: str, groups: Sequence[str] = ()) -> KeyPair:
        """A client certificate that Kubernetes reads as this user in these groups."""
        return self._issue(_name(user, groups), ExtendedKeyUsageOID.CLIENT_AUTH)

    def _issue(
        self, subject: x509.Name, purpose: x509.ObjectIdentifier, names: x509.SubjectAlternativeName | None = None
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(subject, key.public_key())
            .issuer_name(self._certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        return KeyPair(certificate=_pem(builder.sign(self._key, hashes.SHA256())), key=_key_pem(key))


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """The key pair that signs and checks service account tokens, PEM."""

    private: bytes
    public: bytes

    @classmethod
    def generate(cls) -> SigningKey:
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return cls(private=_key_pem(key), public=public)


def kubeconfig(*, server: str, authority: bytes, credential: KeyPair | str, namespace: str = "default") -> bytes:
    """A self-contained kubeconfig; ``credential`` is a client certificate or a bearer token."""
    if isinstance(credential, KeyPair):
        user = {
            "client-certificate-data": _base64(credential.certificate),
            "client-key-data": _base64(credential.key),
        }
    else:
        user = {"token": credential}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {"server": server, "certificate-authority-data": _base64(authority)}}],
        "users": [{"name": "lab", "user": user}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab", "namespace": namespace}}],
        "current-context": "lab",
    }
    return json.dumps(document, indent=2).encode()  # JSON is YAML


def write_private(path: Path, content: bytes) -> Path:
    """Writes a file that only its owner can read, from its first byte on."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path


def _builder(subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALIDITY)
    )


def _name(common_name: str, organizations: Sequence[str] = ()) -> x509.Name:
    return x509.Name(
        [
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization) for organization in organizations),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()

"""The driver's account under the API server's own RBAC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from e2e.lab.api import Api, ApiError, eventually
from e2e.lab.controlplane import ControlPlane
from kubevirt_csi.errors import PermissionDenied
from kubevirt_csi.infra.access import missing_grants
from kubevirt_csi.infra.answers import Place
from kubevirt_csi.infra.connection import Connection
from kubevirt_csi.infra.credentials import Credentials, from_kubeconfig
from kubevirt_csi.infra.resources import CLAIMS, GRANTS, Call, Verb

RBAC = Path(__file__).parents[3] / "deploy/infra/base/rbac.yaml"
PLURALS = {"ServiceAccount": "serviceaccounts", "Role": "roles", "RoleBinding": "rolebindings"}


@pytest.fixture
async def driver(management: ControlPlane, management_namespace: str, tmp_path: Path) -> AsyncIterator[Connection]:
    """A connection as the account that is shipped, before it has any rights."""
    async with management.api() as api:
        await _create(api, management_namespace, "ServiceAccount")
    path = await management.token_kubeconfig(
        tmp_path / "kubeconfig", namespace=management_namespace, account="kubevirt-csi"
    )
    credentials = Credentials(from_kubeconfig(path), cluster="infra cluster")
    yield Connection(credentials, place=Place(cluster="infra cluster", namespace=management_namespace))
    await credentials.aclose()


async def test_without_rights_everything_is_missing_and_a_call_names_what_it_lacks(
    driver: Connection, management_namespace: str
) -> None:
    assert await missing_grants(driver) == list(GRANTS)
    with pytest.raises(PermissionDenied) as refused:
        await driver.request(Call(verb=Verb.PATCH, resource=CLAIMS, name="pvc-1", body={}))
    for named in ("infra cluster", management_namespace, "patch", "persistentvolumeclaims", "grant"):
        assert named in str(refused.value)


async def test_the_shipped_role_gives_all_that_is_needed(
    driver: Connection, management_api: Api, management_namespace: str
) -> None:
    for kind in ("Role", "RoleBinding"):
        await _create(management_api, management_namespace, kind)

    async def nothing_missing() -> bool:  # the authorizer learns of a binding a moment later
        return not await missing_grants(driver)

    await eventually(nothing_missing, what="the role gives all that is needed", deadline_seconds=20)


async def _create(api: Api, namespace: str, kind: str) -> None:
    found = next(entry for entry in yaml.safe_load_all(RBAC.read_text()) if entry["kind"] == kind)
    for subject in found.get("subjects", ()):
        subject["namespace"] = namespace
    root = "/api/v1" if kind == "ServiceAccount" else "/apis/rbac.authorization.k8s.io/v1"
    try:
        await api.create(f"{root}/namespaces/{namespace}/{PLURALS[kind]}", found)
    except ApiError as error:
        raise AssertionError(f"{kind} of {RBAC} is refused") from error

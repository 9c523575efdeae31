"""How a pod finds its own API server."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubevirt_csi.errors import Unavailable
from kubevirt_csi.tenant.connection import Access, in_cluster

VARIABLES = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}


def test_a_pod_finds_the_api_server_and_its_account_where_kubelet_puts_them() -> None:
    assert in_cluster(VARIABLES, Path("/account")) == Access(
        host="fd00::1", port=443, token=Path("/account/token"), authority=Path("/account/ca.crt")
    )


@pytest.mark.parametrize("missing", sorted(VARIABLES))
def test_outside_of_a_pod_it_says_so(missing: str) -> None:
    with pytest.raises(Unavailable, match="not run in a pod"):
        in_cluster({name: value for name, value in VARIABLES.items() if name != missing})

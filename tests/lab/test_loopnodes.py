"""The lab with loop machines takes the shipped controller Deployment, and of its pod the driver alone."""

from __future__ import annotations

from typing import Any

from e2e.lab.driver import REPOSITORY
from e2e.lab.loopnodes import DRIVER_CONTAINER, without_sidecars

DEPLOYED = REPOSITORY / "deploy" / "infra" / "base" / "controller.yaml"


def deployment(*names: str) -> dict[str, Any]:
    containers = [{"name": name, "image": name} for name in names]
    return {"kind": "Deployment", "spec": {"template": {"spec": {"containers": containers}}}}


def test_only_the_driver_stays_in_the_pod_and_other_objects_stay_as_they_are() -> None:
    role = {"kind": "Role", "rules": []}
    objects = [role, deployment("csi-provisioner", "driver", "csi-attacher")]
    assert without_sidecars(objects) == [role, deployment("driver")]
    assert objects == [role, deployment("csi-provisioner", "driver", "csi-attacher")]


def test_the_shipped_deployment_calls_the_driver_so() -> None:
    assert f"- name: {DRIVER_CONTAINER}\n" in DEPLOYED.read_text()

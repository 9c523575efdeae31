"""A running lab as the walk and the suites want it: two clusters by kubeconfig, a namespace, a class, an image."""

from __future__ import annotations

from pathlib import Path

from e2e.kubectl import Kubectl
from e2e.lab.images import BUSYBOX_IMAGE
from e2e.lab.management import NAMESPACE
from e2e.lab.state import LabError, lab_directory
from e2e.tools.build import build
from e2e.walk import Surroundings

STORAGE_CLASS = "kubevirt"


def surroundings_of(name: str) -> Surroundings:
    """The clusters of the lab of this name.

    Raises:
        LabError: it is not ready.
    """
    state = lab_directory(name).read()
    if state is None or state.status != "ready":
        raise LabError(f"lab {name!r} is {state.status if state else 'not there'}: python -m e2e.lab up --name {name}")
    kubectl = build("kubernetes") / "kubectl"
    return Surroundings(
        tenant=Kubectl(kubectl, Path(state.kubeconfigs["tenant"])),
        infra=Kubectl(kubectl, Path(state.kubeconfigs["management"])),
        infra_namespace=NAMESPACE,
        storage_class=STORAGE_CLASS,
        pod_image=BUSYBOX_IMAGE,
    )

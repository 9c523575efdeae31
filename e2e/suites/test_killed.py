"""A killed controller or node plugin loses nothing: the walk goes on where it was, and the bytes are the same.

One volume goes through all deaths, since a walk through both clusters takes minutes.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from e2e.kubectl import wait_until
from e2e.lab.killing import Killing
from e2e.walk import (
    DRIVER_NAMESPACE,
    STEPS,
    Seen,
    Step,
    Surroundings,
    a_claim_waits_for_a_pod,
    a_pod_writes,
    data_volumes,
    the_driver_is_installed,
    wait_for_digest,
    writer,
    writer_of,
)

PLUGGED_SECONDS = 120.0
RESTART_SECONDS = 240.0
BEFORE = (the_driver_is_installed, a_claim_waits_for_a_pod)
AFTER = STEPS[STEPS.index(a_pod_writes) + 1 :]

pytestmark = pytest.mark.timeout(900)


def walk(where: Surroundings, seen: Seen, steps: Iterable[Step]) -> None:
    for step in steps:
        for text in step(where, seen):
            print(text)


def restarts(where: Surroundings, node: str) -> int:
    """How often the node plugin of this node was started again; -1 while it is not ready."""
    [pod] = where.tenant.items(
        "pods", DRIVER_NAMESPACE, "-l", "app=kubevirt-csi-node", f"--field-selector=spec.nodeName={node}"
    )
    [status] = pod["status"]["containerStatuses"]
    return int(status["restartCount"]) if status["ready"] else -1


def plugging(where: Surroundings, seen: Seen) -> str:
    """The volume that is in a VM's spec and not yet Ready in its VMI."""
    in_spec = {
        volume["name"]
        for vm in where.infra.items("vm", where.infra_namespace)
        for volume in vm["spec"]["template"]["spec"].get("volumes") or []
    }
    ready = {
        status["name"]
        for vmi in where.infra.items("vmi", where.infra_namespace)
        for status in vmi["status"].get("volumeStatus") or []
        if status.get("phase") == "Ready"  # permanent volumes have none
    }
    return next(iter(data_volumes(where, seen) & in_spec - ready), "")


def test_a_volume_survives_the_deaths_of_the_controller_during_an_attach_and_of_the_plugin_during_mkfs_and_use(
    surroundings: Surroundings, killing: Killing
) -> None:
    where, seen = replace(surroundings, name="killed"), Seen()
    walk(where, seen, BEFORE)
    node = seen.nodes[0]
    started = restarts(where, node)

    with ThreadPoolExecutor(max_workers=1) as pool:
        formatting = pool.submit(killing.node_plugin_while_it_formats, node)
        where.tenant.apply(writer(where, node=node))
        wait_until(lambda: plugging(where, seen), what="a disk that is being plugged", timeout=PLUGGED_SECONDS)
        killing.controller()
        print("during mkfs:", formatting.result())
    seen.digest = wait_for_digest(where, writer_of(where))
    assert len(data_volumes(where, seen)) == 1
    wait_until(lambda: restarts(where, node) > started, what="the plugin is back", timeout=RESTART_SECONDS)
    started = restarts(where, node)

    print("with a pod running:", killing.node_plugin(node))
    digest = where.tenant.run("exec", writer_of(where), "-n", where.namespace, "--", "sha256sum", "/data/random")
    assert digest.split()[0] == seen.digest
    wait_until(lambda: restarts(where, node) > started, what="the plugin is back again", timeout=RESTART_SECONDS)
    walk(where, seen, AFTER)

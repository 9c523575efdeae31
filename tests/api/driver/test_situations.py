"""VMs in odd states on the stand-in: only the instance has the disk, deleted, restarting, without hot-plug."""

from __future__ import annotations

import asyncio

import pytest

from kubevirt_csi.errors import FailedPrecondition, Unavailable
from tests.api.driver.conftest import Controller, begin, told
from tests.api.standin.hotplugging import VMI_ENDPOINT, volumes_in
from tests.api.standin.modes import KubeVirt
from tests.api.standin.site import Site, add_options, entry_of

pytestmark = pytest.mark.timeout(300)

FAULTS = "lab.csi.kubevirt.io/"


async def plugged_into_the_instance_alone(controller: Controller, kubevirt: KubeVirt) -> str:
    """A running VM whose VMI has the volume pvc-1, which the VM does not know of."""
    await kubevirt.become("legacy")
    site = controller.site
    vm = await site.running_vm()
    await controller.create("pvc-1")
    assert (await site.add(vm, add_options("pvc-1"), kind=VMI_ENDPOINT)).code == 202
    await site.vmi_until(vm, lambda vmi: entry_of(vmi, "pvc-1").get("phase") == "Ready")
    return vm


async def test_a_disk_that_was_plugged_into_the_instance_alone_is_taken_out_of_it(
    controller: Controller, kubevirt: KubeVirt
) -> None:
    site = controller.site
    vm = await plugged_into_the_instance_alone(controller, kubevirt)
    with pytest.raises(Unavailable, match="plugged it into the VMI alone"):
        await controller.publish("pvc-1", vm)
    await controller.unpublish("pvc-1", vm)
    assert entry_of(await site.vmi(vm), "pvc-1") == {}
    await controller.publish("pvc-1", vm)


async def test_the_syncer_takes_such_a_disk_out_when_the_mode_becomes_declarative(
    controller: Controller, kubevirt: KubeVirt
) -> None:
    site = controller.site
    vm = await plugged_into_the_instance_alone(controller, kubevirt)
    await kubevirt.become("declarative")
    await controller.unpublish("pvc-1", vm)
    assert entry_of(await site.vmi(vm), "pvc-1") == {}


async def test_a_disk_of_an_orphaned_instance_is_taken_out_of_the_instance(controller: Controller) -> None:
    site = controller.site
    vm = await site.running_vm()
    await controller.create("pvc-1")
    await controller.publish("pvc-1", vm)
    orphaned = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Orphan"}
    assert (await site.client.call("DELETE", f"{site.vms}/{vm}", orphaned)).code == 200
    await site.client.follow(site.vms, vm, lambda found: found is None)
    await controller.unpublish("pvc-1", vm)
    assert entry_of(await site.vmi(vm), "pvc-1") == {}


async def test_a_vm_that_is_being_deleted_takes_no_disk_and_is_waited_for_by_a_detach(controller: Controller) -> None:
    site = controller.site
    vm = await site.running_vm()
    await asyncio.gather(controller.create("pvc-1"), controller.create("pvc-2"))
    await controller.publish("pvc-1", vm)
    await _fault(site, site.vmis, vm, **{"virt-handler-down": "true"})
    await site.client.delete(f"{site.vms}/{vm}")
    await site.client.follow(site.vms, vm, lambda found: found is None or "deletionTimestamp" in found["metadata"])
    with pytest.raises(FailedPrecondition, match="being deleted"):
        await controller.publish("pvc-2", vm)

    detach, detaching = begin(controller.unpublish("pvc-1", vm))
    await told(detaching, "the VM is being deleted")
    await _fault(site, site.vmis, vm, **{"virt-handler-down": None})
    await detach
    await controller.delete("pvc-1")


async def test_a_vm_without_hotplug_is_refused_before_anything_is_sent(controller: Controller) -> None:
    site = controller.site
    vm = await site.create_vm(run_strategy="Halted")
    await site.client.patch(
        f"{site.vms}/{vm}",
        {
            "spec": {
                "runStrategy": "Always",
                "template": {"spec": {"domain": {"devices": {"disableHotplug": True}}}},
            }
        },
    )
    await site.vmi_until(vm, lambda vmi: (vmi or {}).get("status", {}).get("phase") == "Running")
    await controller.create("pvc-1")
    with pytest.raises(FailedPrecondition, match="disableHotplug"):
        await controller.publish("pvc-1", vm)
    assert volumes_in(await site.vm(vm)) == ["root"]


async def test_a_disk_that_was_attached_before_a_restart_is_judged_on_the_new_instance(controller: Controller) -> None:
    site = controller.site
    vm = await site.running_vm()
    await controller.create("pvc-1")
    told = await controller.publish("pvc-1", vm)
    uid = (await site.vmi(vm))["metadata"]["uid"]
    await _fault(site, site.vms, vm, restart="true")
    await site.vmi_until(vm, lambda vmi: vmi is not None and vmi["metadata"]["uid"] != uid)
    assert await controller.publish("pvc-1", vm) == told
    found = await site.vmi(vm)
    assert found["metadata"]["uid"] != uid
    assert entry_of(found, "pvc-1")["phase"] == "Ready"


async def test_an_attach_goes_on_through_a_restart_of_its_vm(controller: Controller) -> None:
    site = controller.site
    vm = await site.running_vm()
    await controller.create("pvc-1")
    await _fault(site, site.datavolumes, "pvc-1", **{"stuck-attach": "AttachedToNode"})
    attach = asyncio.create_task(controller.publish("pvc-1", vm))
    states = await site.vmi_until(vm, lambda vmi: entry_of(vmi, "pvc-1").get("phase") == "AttachedToNode")
    await _fault(site, site.datavolumes, "pvc-1", **{"stuck-attach": None})
    await _fault(site, site.vms, vm, restart="true")
    await attach
    found = await site.vmi(vm)
    assert found["metadata"]["uid"] != states[-1]["metadata"]["uid"]
    assert entry_of(found, "pvc-1")["phase"] == "Ready"


async def test_a_stuck_attach_is_told_with_phase_reason_and_message(controller: Controller) -> None:
    site = controller.site
    vm = await site.running_vm()
    await controller.create("pvc-1")
    await _fault(site, site.datavolumes, "pvc-1", **{"stuck-attach": "MountedToPod"})
    attach, attaching = begin(controller.publish("pvc-1", vm))
    await told(attaching, "MountedToPod: VolumeMountedToPod: Volume pvc-1 has been mounted")
    await _fault(site, site.datavolumes, "pvc-1", **{"stuck-attach": None})
    await attach


@pytest.mark.parametrize(
    "answer", ["409", "{code: 422, text: the server rejected our request due to an error in our request}"]
)
async def test_what_was_carried_out_and_answered_with_a_conflict_is_decided_by_state(
    controller: Controller, answer: str
) -> None:
    site = controller.site
    vm = await site.running_vm()
    await controller.create("pvc-1")
    await _fault(site, site.vms, vm, **{"lose-addvolume": answer, "lose-removevolume": answer})
    await controller.publish("pvc-1", vm)
    await controller.unpublish("pvc-1", vm)
    assert volumes_in(await site.vm(vm)) == ["root"]


async def _fault(site: Site, collection: str, name: str, **faults: str | None) -> None:
    annotations = {f"{FAULTS}{fault}": text for fault, text in faults.items()}
    await site.client.patch(f"{collection}/{name}", {"metadata": {"annotations": annotations}})

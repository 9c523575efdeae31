"""What the node must answer to a call, and what must be mounted then: the model that hosts are compared with.

It knows volumes, not disks: staged or not, shown to which pods and how, and of which type its file system is. After a
death within a call it takes over what is mounted, which must lie between the states before and after the call.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from kubevirt_csi._csi.csi import v1 as csi
from tests.fakes.sequences import KINDS, Do, Kind, Mounted, Step

DEFAULT = "ext4"


@dataclass(slots=True)
class Known:
    """One volume. ``pods`` are those it is shown to, with whether they may only read."""

    kind: Kind
    staged: bool = False
    formatted: bool = False
    pods: dict[str, bool] = field(default_factory=dict)

    def mounts(self, number: int) -> set[Mounted]:
        """What must be mounted for it."""
        what = "device" if self.kind.block else DEFAULT
        found = {Mounted(f"/{pod}-{number}", self.kind.name, what, only) for pod, only in self.pods.items()}
        if self.staged and not self.kind.block:
            found.add(Mounted(f"/staging-{number}", self.kind.name, what, read_only=False))
        return found


class Model:
    """All volumes of one node."""

    def __init__(self) -> None:
        self.volumes = [Known(kind) for kind in KINDS]

    def mounts(self) -> set[Mounted]:
        """The mount table as it must be."""
        return set().union(*(known.mounts(number) for number, known in enumerate(self.volumes)))

    def apply(self, step: Step) -> str:
        """The code that the call must be answered with; from now on the model is as the node must be then."""
        known = self.volumes[step.volume]
        match step.do:
            case Do.STAGE:
                return self._stage(known, step)
            case Do.PUBLISH:
                return self._publish(known, step)
            case Do.UNPUBLISH:
                known.pods.pop(step.target, None)
                return "OK"
            case Do.UNSTAGE:
                if known.pods:
                    return "FAILED_PRECONDITION"
                known.staged = False
                return "OK"
            case Do.EXPAND:
                shown = step.target in known.pods if step.target else known.staged and not known.kind.block
                return "OK" if shown else "NOT_FOUND"

    def adopt(self, step: Step, mounted: set[Mounted]) -> None:
        """Takes over what a death within the call has left.

        Raises:
            AssertionError: that is neither of before the call nor of after it, nor between.
        """
        before = self.mounts()
        after = copy.deepcopy(self)
        after.apply(step)
        assert before & after.mounts() <= mounted <= before | after.mounts(), f"{step} left {mounted}"
        known = self.volumes[step.volume]
        for number, other in enumerate(self.volumes):
            if other is known:
                paths = {mount.path: mount.read_only for mount in mounted}
                known.staged = f"/staging-{number}" in paths or (known.kind.block and known.staged)
                known.pods = {pod: paths[f"/{pod}-{number}"] for pod in ("a", "b") if f"/{pod}-{number}" in paths}
        known.formatted = known.formatted or known.staged

    def _stage(self, known: Known, step: Step) -> str:
        wrong = not known.kind.block and step.fs_type not in ("", DEFAULT)
        if wrong and known.staged:
            return "ALREADY_EXISTS"
        if wrong and known.formatted:
            return "FAILED_PRECONDITION"
        known.staged = known.formatted = True
        return "OK"

    def _publish(self, known: Known, step: Step) -> str:
        staged = self._stage(known, step)
        if staged != "OK":
            return staged
        if known.kind.block and step.read_only:
            return "FAILED_PRECONDITION"
        if step.target in known.pods:
            return "OK" if known.pods[step.target] == step.read_only else "ALREADY_EXISTS"
        if known.pods and known.kind.mode is csi.VolumeCapabilityAccessModeMode.SINGLE_NODE_SINGLE_WRITER:
            return "FAILED_PRECONDITION"
        known.pods[step.target] = step.read_only
        return "OK"

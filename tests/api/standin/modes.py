"""KubeVirt's configuration as its administrator changes it on a running cluster."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

from tests.api.standin.talking import Client

OBJECT = "/apis/kubevirt.io/v1/namespaces/kubevirt/kubevirts"
NEWEST = "v1.9.0"
TURNS = itertools.count(1)

Mode = Literal["legacy", "declarative", "off"]
GATES: dict[Mode, tuple[Sequence[str], Sequence[str]]] = {
    "legacy": (["HotplugVolumes"], []),
    "declarative": ([], []),
    "off": ([], ["DeclarativeHotplugVolumes"]),
}
"""What is listed as enabled and as disabled, in KubeVirt v1.9."""


class KubeVirt:
    """The one KubeVirt object of the management cluster."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._changed = False

    async def become(self, mode: Mode) -> None:
        """Makes it a KubeVirt v1.9 of that mode."""
        enabled, disabled = GATES[mode]
        await self.configure(version=NEWEST, enabled=enabled, disabled=disabled)

    async def configure(self, *, version: str, enabled: Sequence[str] = (), disabled: Sequence[str] = ()) -> None:
        """Sets version and gates, and returns when all of KubeVirt goes by them."""
        self._changed = True
        await self._client.patch(f"{OBJECT}/kubevirt/status", {"status": {"observedKubeVirtVersion": version}})
        # A gate that means nothing makes every change a new generation, and so one whose arrival can be seen.
        gates = {"featureGates": [*enabled, f"Turn{next(TURNS)}"], "disabledFeatureGates": [*disabled]}
        body = {"spec": {"configuration": {"developerConfiguration": gates}}}
        generation = (await self._client.patch(f"{OBJECT}/kubevirt", body))["metadata"]["generation"]
        await self._client.follow(
            OBJECT,
            "kubevirt",
            lambda kubevirt: (kubevirt or {}).get("status", {}).get("observedGeneration") == generation,
        )

    async def restore(self) -> None:
        """Makes it what every test begins with."""
        if self._changed:
            await self.become("declarative")

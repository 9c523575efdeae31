"""Kustomize folders as objects, and objects as requests: what the lab applies is what deploy/ ships.

kubectl renders; paths are taken from the server's own discovery, so kinds need no table here.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterable
from pathlib import Path

import yaml

from e2e.lab.api import Api, ApiError, Object

LAB_DEPLOY = Path(__file__).parent / "deploy"
INFRA = LAB_DEPLOY / "infra"
TENANT = LAB_DEPLOY / "tenant"
RENDER_SECONDS = 60


class ManifestError(Exception):
    """A folder that cannot be rendered, or an object that the server refuses; the text has its words."""


async def render(folder: Path, *, kubectl: Path) -> list[Object]:
    """The objects of a kustomize folder, in kustomize's order (namespaces and accounts first).

    Raises:
        ManifestError: kustomize refuses the folder.
    """

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(kubectl), "kustomize", str(folder)],
            check=False,
            capture_output=True,
            text=True,
            timeout=RENDER_SECONDS,
        )

    result = await asyncio.to_thread(run)
    if result.returncode != 0:
        raise ManifestError(f"kubectl kustomize {folder}: {result.stderr.strip()}")
    return [document for document in yaml.safe_load_all(result.stdout) if document]


def named(objects: Iterable[Object], kind: str) -> list[Object]:
    """The objects of this kind."""
    return [item for item in objects if item["kind"] == kind]


async def apply(api: Api, objects: Iterable[Object], *, dry_run: bool = False) -> None:
    """Applies the objects in their order, server-side and strictly: an unknown field is an error.

    Args:
        api: of the cluster.
        objects: as `render` returns them.
        dry_run: let the server judge them and store nothing; their namespaces must exist already.

    Raises:
        ManifestError: the server refused one; the text names it.
    """
    paths = Paths(api)
    for item in objects:
        try:
            await api.apply(await paths.of(item), item, dry_run=dry_run)
        except ApiError as error:
            name = item["metadata"]["name"]
            raise ManifestError(
                f"{item['kind']} {name} is refused{' (dry run)' if dry_run else ''}: {error}"
            ) from error


class Paths:
    """The API paths of objects, by the server's discovery documents, each read once."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._kinds: dict[str, dict[str, Object]] = {}

    async def of(self, item: Object) -> str:
        """The path of the object itself.

        Raises:
            ManifestError: the server does not know its kind.
        """
        version = item["apiVersion"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if version not in self._kinds:
            resources = (await self._api.get(root))["resources"]
            self._kinds[version] = {r["kind"]: r for r in resources if "/" not in r["name"]}
        kind = self._kinds[version].get(item["kind"])
        if kind is None:
            raise ManifestError(f"{item['kind']} in {version} is unknown to {self._api.kubeconfig}")
        metadata = item["metadata"]
        scope = f"/namespaces/{metadata.get('namespace', 'default')}" if kind["namespaced"] else ""
        return f"{root}{scope}/{kind['name']}/{metadata['name']}"

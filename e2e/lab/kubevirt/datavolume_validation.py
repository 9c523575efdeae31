"""What CDI's webhook refuses in DataVolumes.

Source: CDI pkg/apiserver/webhooks/datavolume-validate.go. The surprising facts: the spec of a DataVolume can never be
changed, and a claim that an earlier DataVolume of the name left behind is let through here (the controller reports it).
"""

from __future__ import annotations

from collections.abc import Iterator

from e2e.lab.kubevirt.caching import Cluster
from e2e.lab.kubevirt.causes import Cause
from e2e.lab.kubevirt.quantities import bytes_of
from e2e.lab.kubevirt.resources import CLAIM, DATA_VOLUME, Object, controller_of, dig, key_of

ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
MINIMUM_BYTES = 1024**2


def validate(volume: Object, old: Object | None, cluster: Cluster) -> list[Cause]:
    """Checks a new DataVolume, or that an old one keeps its spec."""
    spec = volume.get("spec", {})
    if old is not None:
        if spec == old.get("spec", {}):
            return []
        return [Cause(message="Cannot update DataVolume Spec", field="DataVolume.spec", reason="FieldValueDuplicate")]
    return _storage_choice(spec) or [
        *_claim_exists(volume, cluster),
        *_source(spec),
        *_size(spec),
        *_access_modes(spec),
    ]


def _storage_choice(spec: Object) -> list[Cause]:
    if not spec.get("pvc") and not spec.get("storage"):
        return [Cause(message="Missing Data volume PVC", field="spec.PVC")]
    if spec.get("pvc") and spec.get("storage"):
        message = "Duplicate storage definition, both target storage and target pvc defined"
        return [Cause(message=message, field="spec.PVC.Storage")]
    return []


def _claim_exists(volume: Object, cluster: Cluster) -> Iterator[Cause]:
    key = key_of(volume)
    claim = cluster.get(CLAIM, key)
    if claim is not None and dig(controller_of(claim), "kind") != DATA_VOLUME.kind:
        message = f"Destination PVC {key[0]}/{key[1]} already exists"
        yield Cause(message=message, field="DataVolume.Name", reason="FieldValueDuplicate")


def _source(spec: Object) -> Iterator[Cause]:
    named = bool(spec.get("source")) or bool(spec.get("sourceRef"))
    target = spec.get("pvc") or spec["storage"]
    reference = target.get("dataSourceRef")
    external = bool(reference or target.get("dataSource"))
    if named and external:
        yield Cause(message="External population is incompatible with Source and SourceRef", field="spec")
    elif external and dig(reference, "namespace"):
        yield Cause(message="Invalid value: DataSourceRef namespace not supported", field="spec.dataSourceRef")
    elif not named and not external:
        yield Cause(
            message="Data volume should have either Source or SourceRef, or be externally populated", field="spec"
        )


def _size(spec: Object) -> Iterator[Cause]:
    api, what = ("pvc", "PVC") if spec.get("pvc") else ("storage", "Storage")
    field = f"spec.{what}.resources.requests.size"
    asked = dig(spec, api, "resources", "requests", "storage")
    if asked is None:
        if not ({"pvc", "snapshot"} & set(spec.get("source") or {}) and api == "storage"):
            yield Cause(message=f"{what} size is missing", field=field)
        return
    try:
        size = bytes_of(asked)
    except ValueError as error:
        yield Cause(message=str(error), field=field)
        return
    if size <= 0:
        yield Cause(message=f"{what} size can't be equal or less than zero", field=field)
    elif size < MINIMUM_BYTES:
        yield Cause(message=f"{what} size should be at least 1MiB", field=field)


def _access_modes(spec: Object) -> Iterator[Cause]:
    target = spec.get("pvc") or spec["storage"]
    modes = target.get("accessModes") or []
    field = f"spec.{'PVC' if spec.get('pvc') else 'Storage'}.accessModes"
    if spec.get("pvc") and not modes:
        message = "Required value: at least 1 access mode is required"
        yield Cause(message=message, field=field, reason="FieldValueRequired")
    elif spec.get("pvc") and len(modes) > 1:
        yield Cause(message="PVC multiple accessModes", field=field)
    for mode in modes:
        if mode not in ACCESS_MODES:
            supported = ", ".join(f'"{each}"' for each in ACCESS_MODES)
            message = f'Unsupported value: "{mode}": supported values: {supported}'
            yield Cause(message=message, field=field, reason="FieldValueNotSupported")

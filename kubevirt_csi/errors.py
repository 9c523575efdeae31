"""Every failure that leaves the driver, as one tree; each class carries its gRPC status.

    DriverError                 abstract
    ├── still under way, or may be: the caller keeps the object in mind and asks again
    │   ├── Aborted             another operation on this volume runs, or somebody else may be changing it
    │   ├── Unavailable         a dependency did not answer, or is not ready
    │   └── DeadlineExceeded    the answer would come after the caller's deadline; the work goes on
    └── over: nothing is happening, and repeating the same request will not help by itself
        ├── InvalidArgument     the request is malformed or asks for what we do not do
        ├── NotFound            the volume, VM, device or path does not exist for us
        ├── AlreadyExists       it exists, with other properties
        ├── FailedPrecondition  the state of the object forbids it; the text says what has to change
        ├── OutOfRange          a capacity that cannot be made
        ├── PermissionDenied    an API refused us a verb; the text names verb, resource and namespace
        ├── ResourceExhausted   CreateVolume, ControllerExpandVolume: no quota or room; ControllerPublishVolume: this
        │                       VM is full, only that
        ├── Unimplemented
        └── Internal            a defect, or a program that failed

The codes are chosen by what the CSI sidecars do with them: the first group means "may be in progress" to the
provisioner, the attacher and the resizer, every other code means "certainly not", after which a half-made volume may be
forgotten. Unknown never leaves the process. The text names the object, the cluster, what was found and what to do, and
never holds a value that came out of ``secrets``.
"""

from __future__ import annotations

from typing import ClassVar

from grpclib.const import Status


class DriverError(Exception):
    """A failure with a text for people and a status for sidecars."""

    status: ClassVar[Status] = Status.INTERNAL


class Aborted(DriverError):
    """Another operation on this volume runs; the same call succeeds later."""

    status = Status.ABORTED


class Unavailable(DriverError):
    """A dependency did not answer or is not ready; whether the last write was carried out may be unknown."""

    status = Status.UNAVAILABLE


class DeadlineExceeded(DriverError):
    """The caller's deadline came first; the work goes on and a retry joins it."""

    status = Status.DEADLINE_EXCEEDED


class InvalidArgument(DriverError):
    """The request is malformed, or asks for something that this driver does not do. Nothing was changed."""

    status = Status.INVALID_ARGUMENT


class NotFound(DriverError):
    """The object does not exist, or carries another tenant's labels, which is the same to the caller."""

    status = Status.NOT_FOUND


class AlreadyExists(DriverError):
    """The object exists with properties that are incompatible with the request."""

    status = Status.ALREADY_EXISTS


class FailedPrecondition(DriverError):
    """The object's state forbids the operation; the text says what must change first."""

    status = Status.FAILED_PRECONDITION


class OutOfRange(DriverError):
    """No capacity satisfies the request."""

    status = Status.OUT_OF_RANGE


class PermissionDenied(DriverError):
    """An API refused the driver's own account."""

    status = Status.PERMISSION_DENIED


class ResourceExhausted(DriverError):
    """No quota or room for a new or larger volume; of ControllerPublishVolume: the VM takes no more disks."""

    status = Status.RESOURCE_EXHAUSTED


class Unimplemented(DriverError):
    """The operation, or this variant of it, does not exist here."""

    status = Status.UNIMPLEMENTED


class Internal(DriverError):
    """A program failed, or the driver met a state that it does not know."""

    status = Status.INTERNAL

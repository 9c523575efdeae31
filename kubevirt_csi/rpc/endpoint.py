"""A CSI endpoint: a Unix socket with the right mode and no second server behind it.

The socket is bound here and handed to the gRPC server, because that is the only way to set its mode before anybody
can connect. A socket file that nobody serves is what a killed process leaves behind and is replaced; one that is
served means a second driver on the same path, and the program stops.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpclib.protocol import Peer

# sun_path of Linux has 108 bytes, the last of which is zero.
LONGEST_PATH_BYTES = 107
GROUP_MAY_CONNECT = 0o660
OWNER_ONLY = 0o600
BACKLOG = 128


class EndpointError(Exception):
    """The endpoint's socket cannot be bound; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A Unix socket's absolute path and the mode it gets."""

    path: Path
    mode: int = GROUP_MAY_CONNECT

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Reads ``unix:///absolute/path``, or the ``unix:/absolute/path`` of older manifests.

        Raises:
            ValueError: another scheme, a relative path, or one too long for a Unix socket.
        """
        scheme, separator, rest = text.partition(":")
        path = rest.removeprefix("//")
        if scheme != "unix" or not separator or not path.startswith("/"):
            raise ValueError("accepted is unix:///absolute/path.sock")
        length = len(os.fsencode(path))
        if length > LONGEST_PATH_BYTES:
            raise ValueError(f"the path has {length} bytes, that of a Unix socket at most {LONGEST_PATH_BYTES}")
        return cls(Path(path))

    def bind(self) -> BoundSocket:
        """Creates the socket file, in the place of one that nobody serves any more.

        Raises:
            EndpointError: somebody serves this path, or something that is no socket is there, or the folder is missing.
        """
        self._remove_stale()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listener.bind(str(self.path))
            # Nobody can connect before listen(), so no window with the umask's mode exists.
            self.path.chmod(self.mode)
            inode = self.path.stat().st_ino
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            raise EndpointError(f"cannot bind {self.path}: {error.strerror}") from error
        return BoundSocket(endpoint=self, listener=listener, inode=inode)

    def _remove_stale(self) -> None:
        try:
            found = self.path.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        except OSError as error:
            raise EndpointError(f"cannot look at {self.path}: {error.strerror}") from error
        if not stat.S_ISSOCK(found.st_mode):
            raise EndpointError(f"{self.path} exists and is no socket: remove it or choose another --endpoint")
        if _is_served(self.path):
            raise EndpointError(f"{self.path} is served by another process: stop it or choose another --endpoint")
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class BoundSocket:
    """A listening socket and the file that belongs to it."""

    endpoint: Endpoint
    listener: socket.socket
    inode: int

    def unlink(self) -> None:
        """Removes the file, unless it is another process's by now."""
        with suppress(FileNotFoundError):
            if self.endpoint.path.stat(follow_symlinks=False).st_ino == self.inode:
                self.endpoint.path.unlink()


def peer_uid(peer: Peer) -> int | None:
    """The user id of the process at the other end, as the kernel vouches for it; None when that is no Unix socket."""
    transport = peer._transport  # noqa: SLF001 - grpclib has no public way to the socket of a call
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family != socket.AF_UNIX:
        return None
    try:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        return None  # the caller has hung up meanwhile
    _pid, uid, _gid = struct.unpack("3i", credentials)
    return int(uid)


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)  # noqa: FBT003 - connecting to a Unix socket succeeds or fails at once
        try:
            client.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            # A full backlog or a missing right: either way it is not ours to remove.
            return True
        return True

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from kubevirt_csi.rpc.endpoint import OWNER_ONLY, Endpoint, EndpointError


@pytest.mark.parametrize("text", ["unix:///csi/csi.sock", "unix:/csi/csi.sock"])
def test_an_endpoint_is_a_unix_socket_in_either_spelling(text: str) -> None:
    assert Endpoint.parse(text) == Endpoint(Path("/csi/csi.sock"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("tcp://127.0.0.1:1", "accepted is unix:///absolute/path.sock", id="another scheme"),
        pytest.param("unix://csi.sock", "accepted is unix:///absolute/path.sock", id="relative"),
        pytest.param("/csi/csi.sock", "accepted is unix:///absolute/path.sock", id="no scheme"),
        pytest.param("", "accepted is unix:///absolute/path.sock", id="empty"),
        pytest.param(f"unix:///{'ä' * 54}", "the path has 109 bytes, that of a Unix socket at most 107", id="too long"),
    ],
)
def test_anything_else_is_refused_with_what_is_accepted(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Endpoint.parse(text)


@pytest.mark.parametrize("umask", [0o000, 0o077], ids=["open umask", "strict umask"])
def test_the_socket_gets_its_mode_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        sockets = [Endpoint(tmp_path / "csi.sock").bind(), Endpoint(tmp_path / "private.sock", mode=OWNER_ONLY).bind()]
    finally:
        os.umask(before)
    for bound in sockets:
        bound.listener.close()
    assert [stat.S_IMODE(bound.endpoint.path.stat().st_mode) for bound in sockets] == [0o660, 0o600]


def test_a_socket_that_nobody_serves_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "csi.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    assert path.is_socket()
    Endpoint(path).bind().listener.close()


def test_a_socket_that_somebody_serves_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "csi.sock"
    first = Endpoint(path).bind()
    try:
        with pytest.raises(EndpointError, match="is served by another process"):
            Endpoint(path).bind()
        assert path.stat().st_ino == first.inode
    finally:
        first.listener.close()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "csi.sock"
    path.write_text("mine")
    with pytest.raises(EndpointError, match="is no socket"):
        Endpoint(path).bind()
    assert path.read_text() == "mine"


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match=r"cannot bind .*missing/csi\.sock: No such file"):
        Endpoint(tmp_path / "missing" / "csi.sock").bind()


def test_the_file_of_a_successor_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "csi.sock"
    first = Endpoint(path).bind()
    first.listener.close()
    path.rename(tmp_path / "away")
    second = Endpoint(path).bind()
    second.listener.close()
    first.unlink()
    assert path.exists()
    second.unlink()
    assert not path.exists()

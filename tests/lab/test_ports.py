"""Ports are free, and stay their owner's."""

from __future__ import annotations

import socket

from e2e.lab import ports as module
from e2e.lab.ports import Ports


def test_two_owners_never_hold_the_same_port() -> None:
    with Ports() as mine, Ports() as yours:
        taken = [owner.take() for _ in range(20) for owner in (mine, yours)]
    assert len(set(taken)) == len(taken)


def test_a_port_on_which_something_listens_is_not_given_out() -> None:
    with Ports() as owner, socket.socket() as listener:
        port = owner.take()
        owner.close()
        listener.bind(("127.0.0.1", port))
        listener.listen()
        assert not owner._lock(port)


def test_a_port_can_be_taken_again_when_its_owner_lets_go() -> None:
    owner = Ports()
    port = owner.take()
    assert not Ports()._lock(port)
    owner.close()
    with Ports() as next_owner:
        assert next_owner._lock(port)


def test_ports_lie_outside_the_ephemeral_range() -> None:
    with Ports() as owner:
        assert module.FIRST <= owner.take() < module.LAST <= 32768

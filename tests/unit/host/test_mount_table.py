"""Reading the kernel's mount table while it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kubevirt_csi.host.mounts import MOST_READINGS, settled


def readings(*texts: bytes) -> Callable[[], bytes]:
    """Reads these texts, one after the other."""
    left: Iterator[bytes] = iter(texts)
    return lambda: next(left)


def test_a_table_that_is_read_twice_alike_is_believed() -> None:
    assert settled(readings(b"a", b"a")) == b"a"


def test_a_reading_that_left_a_mount_out_is_not_believed() -> None:
    assert settled(readings(b"a", b"ab", b"ab")) == b"ab"


def test_a_table_that_never_rests_is_read_a_few_times_only() -> None:
    texts = [bytes([number]) for number in range(MOST_READINGS)]
    assert settled(readings(*texts)) == texts[-1]

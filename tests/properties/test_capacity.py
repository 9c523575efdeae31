"""Quantities and capacity ranges."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kubevirt_csi.domain.capacity import DEFAULT_BYTES, MAX_BYTES, MIB, CapacityRange, round_up
from kubevirt_csi.domain.overhead import image_bytes
from kubevirt_csi.domain.quantities import format_quantity, parse_quantity
from kubevirt_csi.errors import InvalidArgument, OutOfRange

SIZES = st.integers(0, MAX_BYTES)
SUFFIXES = {"": 1, "k": 1000, "M": 1000**2, "G": 1000**3, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4}


@given(SIZES)
@example(MAX_BYTES)
@example(8 * 1024**5 + 1)
def test_a_formatted_quantity_is_read_as_the_same_bytes(size: int) -> None:
    assert parse_quantity(format_quantity(size)) == size


@given(st.integers(0, 10**6), st.integers(0, 999), st.sampled_from(sorted(SUFFIXES)))
def test_fractions_of_a_unit_are_exact_and_rounded_up_to_a_byte(whole: int, thousandths: int, suffix: str) -> None:
    exact = (whole + Fraction(thousandths, 1000)) * SUFFIXES[suffix]
    size = parse_quantity(f"{whole}.{thousandths:03}{suffix}")
    assert exact <= size < exact + 1


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1Gi", 1024**3),
        ("1.5G", 1_500_000_000),
        ("100m", 1),
        ("1500m", 2),
        ("1u", 1),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1.5e-1", 1),
        ("9E", 9 * 10**18),
        (".5Ki", 512),
        ("1.", 1),
        ("+5", 5),
        ("0", 0),
        (1048576, 1048576),
        ("7Ei", 7 * 1024**6),
    ],
)
def test_quantities_are_read_as_kubernetes_reads_them(text: str | int, size: int) -> None:
    assert parse_quantity(text) == size


@pytest.mark.parametrize(
    "text", ["", "1 Gi", "1gi", "1K", "-1", "-1Gi", "1e3Ki", "1.5.5", "Gi", "8Ei", "1e99", "٣", "1e"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a Kubernetes quantity|more than 64 bits"):
        parse_quantity(text)


@given(st.text(max_size=8))
def test_any_text_is_a_size_or_refused(text: str) -> None:
    with suppress(ValueError):
        assert 0 <= parse_quantity(text) <= MAX_BYTES


@given(SIZES, SIZES)
def test_a_chosen_size_is_in_the_range_in_whole_mib_and_the_least_that_is_required(required: int, limit: int) -> None:
    asked = CapacityRange(required=required, limit=limit)
    try:
        size = asked.choose()
    except OutOfRange:
        assert limit or required > MAX_BYTES - MIB
        assert not limit or limit < (round_up(required) or MIB)
        return
    assert asked.admits(size)
    assert size % MIB == 0
    if required:
        assert size - MIB < required


@pytest.mark.parametrize(
    ("required", "limit", "size"),
    [
        (0, 0, DEFAULT_BYTES),
        (1, 0, MIB),
        (1_000_000, 0, MIB),
        (MIB, MIB, MIB),
        (0, 512 * MIB, 512 * MIB),
        (0, 512 * MIB + 5, 512 * MIB),
        (0, 5 * DEFAULT_BYTES, DEFAULT_BYTES),
        (MIB + 1, 2 * MIB, 2 * MIB),
    ],
)
def test_ranges_come_to_these_sizes(required: int, limit: int, size: int) -> None:
    assert CapacityRange(required=required, limit=limit).choose() == size


@pytest.mark.parametrize(
    ("required", "limit"), [(1, 1), (2 * MIB, MIB), (MIB + 1, 2 * MIB - 1), (0, 5), (MAX_BYTES, 0)]
)
def test_a_range_without_a_whole_number_of_mib_is_out_of_range(required: int, limit: int) -> None:
    with pytest.raises(OutOfRange, match="whole MiB"):
        CapacityRange(required=required, limit=limit).choose()


@pytest.mark.parametrize(("required", "limit"), [(-1, 0), (0, -1)])
def test_negative_bounds_are_invalid(required: int, limit: int) -> None:
    with pytest.raises(InvalidArgument, match="must not be negative"):
        CapacityRange(required=required, limit=limit)


def test_an_existing_size_is_compared_with_the_range_as_it_was_asked_for() -> None:
    asked = CapacityRange(required=10 * MIB, limit=20 * MIB)
    assert [asked.admits(size * MIB) for size in (9, 10, 20, 21)] == [False, True, True, False]
    assert CapacityRange().admits(5)


@given(st.integers(1, 2**40), st.integers(0, 900))
def test_an_image_is_never_smaller_than_told_whichever_way_cdi_makes_it(claim: int, thousandths: int) -> None:
    overhead = Fraction(thousandths, 1000)
    told = image_bytes(claim, overhead)
    for image in (claim / (1 + overhead), claim * (1 - overhead)):
        assert told <= image // MIB * MIB
    assert told % MIB == 0
    assert told > claim * (1 - overhead) - MIB

"""Splitting buffers: the native walk and its Python twin against a record-by-record reader."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msmon.errors import NativeCodeUnavailable
from msmon.ffi import machine_code, walk
from msmon.ffi.walk import Bytes, Split, split, split_in_python
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind

Splitter = Callable[[Bytes], Split]

both = pytest.mark.parametrize("splitter", [split, split_in_python])


def _record(kind: int, fill: int) -> bytes:
    size = DTYPES[ActivityKind(kind)].itemsize
    return kind.to_bytes(4, "little") + bytes((fill + i) % 256 for i in range(size - 4))


def _buffer(kinds: list[int], tail: bytes = b"") -> Bytes:
    joined = b"".join(_record(kind, place) for place, kind in enumerate(kinds))
    return np.frombuffer(joined + tail, np.uint8)


def _read_slowly(data: Bytes) -> tuple[dict[ActivityKind, bytes], int, int | None]:
    raw, position = data.tobytes(), 0
    parts: dict[ActivityKind, bytes] = {}
    while position + 4 <= len(raw):
        number = int.from_bytes(raw[position : position + 4], "little")
        if number not in DTYPES:
            return parts, position, number
        kind = ActivityKind(number)
        end = position + DTYPES[kind].itemsize
        if end > len(raw):
            break
        parts[kind] = parts.get(kind, b"") + raw[position:end]
        position = end
    return parts, position, None


kinds_in_a_row = st.lists(st.sampled_from([int(kind) for kind in ActivityKind]), max_size=60)


@both
@given(kinds=kinds_in_a_row, tail=st.binary(max_size=80))
def test_splits_as_a_reader_of_single_records_does(
    splitter: Splitter, kinds: list[int], tail: bytes
) -> None:
    data = _buffer(kinds, tail)
    found = splitter(data)
    parts, read_bytes, unknown_kind = _read_slowly(data)
    assert {kind: records.tobytes() for kind, records in found.parts.items()} == parts
    assert (found.read_bytes, found.unknown_kind) == (read_bytes, unknown_kind)
    assert all(records.dtype == DTYPES[kind] for kind, records in found.parts.items())


@both
@pytest.mark.parametrize("unknown", [0, 13, 0x7FFFFFFF, 0xFFFFFFFF])
def test_an_unknown_kind_ends_the_walk_and_is_named(splitter: Splitter, unknown: int) -> None:
    found = splitter(_buffer([2, 10], unknown.to_bytes(4, "little") + _record(2, 0)))
    assert (found.read_bytes, found.unknown_kind) == (56 + 48, unknown)
    assert sorted(found.parts) == [ActivityKind.Kernel, ActivityKind.AclAPI]


@both
@pytest.mark.parametrize("length", [0, 1, 3])
def test_less_than_a_kind_is_no_record(splitter: Splitter, length: int) -> None:
    found = splitter(np.zeros(length, np.uint8))
    assert found == Split({}, 0, None)


@both
@pytest.mark.parametrize("cut", [1, 52, 55])
def test_a_record_that_is_cut_off_is_left_out(splitter: Splitter, cut: int) -> None:
    data = _buffer([2, 2])
    found = splitter(data[: len(data) - cut])
    assert (found.read_bytes, found.unknown_kind) == (56, None)


def test_records_of_one_kind_are_not_copied() -> None:
    data = _buffer([2] * 10)
    (records,) = split(data).parts.values()
    assert np.shares_memory(records, data)


def test_mixed_records_have_memory_of_their_own() -> None:
    data = _buffer([2, 10] * 10)
    assert not any(np.shares_memory(records, data) for records in split(data).parts.values())


@both
def test_strided_bytes_are_read_as_they_look(splitter: Splitter) -> None:
    data = _buffer([2, 10])
    twice = np.repeat(data, 2)
    assert splitter(twice[::2]).read_bytes == len(data)


def test_every_record_fits_the_room_that_gather_takes() -> None:
    assert max(dtype.itemsize for dtype in DTYPES.values()) <= machine_code.GATHER_SLACK_BYTES


@pytest.fixture
def other_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "WALK", {})
    monkeypatch.setattr(walk, "_native_routines", walk._native_routines.__wrapped__)


@pytest.mark.usefixtures("other_cpu")
def test_another_cpu_walks_in_python() -> None:
    assert split(_buffer([2, 10])).read_bytes == 56 + 48


def test_forbidden_executable_memory_walks_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(_: bytes) -> int:
        raise NativeCodeUnavailable("forbidden")

    monkeypatch.setattr(walk, "map_code", forbidden)
    monkeypatch.setattr(walk, "_native_routines", walk._native_routines.__wrapped__)
    assert split(_buffer([2, 10])).read_bytes == 56 + 48

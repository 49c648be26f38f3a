"""Decoding against a slow decoder that unpacks one record at a time."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msmon.ffi import texts
from msmon.ffi.decode import Decoded, decode
from msmon.records.kinds import ActivityKind
from msmon.records.layout import LAYOUTS, TEXT_FIELDS

FIELDS = {kind: layout.c_fields for kind, layout in LAYOUTS.items()}
CODES = {"<u4": "I", "<u8": "Q", "<f8": "d", "u1": "B"}
STRUCTS = {
    kind: struct.Struct("<" + "".join(CODES[code] for _, code in fields))
    for kind, fields in FIELDS.items()
}

Record = tuple[ActivityKind, dict[str, Any]]


class Memory:
    """A buffer under construction, and the C strings it points to."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.strings: list[Any] = []

    def string(self, text: bytes) -> int:
        self.strings.append(ctypes.create_string_buffer(text))
        return ctypes.addressof(self.strings[-1])

    def append(self, kind: ActivityKind, **values: Any) -> None:
        row = [kind if name == "kind" else values.get(name, 0) for name, _ in FIELDS[kind]]
        packed = STRUCTS[kind].pack(*row)
        self.data += packed + b"\xaa" * (-len(packed) % 8)

    def array(self) -> np.ndarray:
        return np.frombuffer(bytearray(self.data), np.uint8)


def decode_one_by_one(data: bytes) -> tuple[dict[ActivityKind, list[tuple[Any, ...]]], int]:
    """Return the rows per kind, texts in place of pointers, and the bytes left over."""
    rows: dict[ActivityKind, list[tuple[Any, ...]]] = {}
    position = 0
    while position + 4 <= len(data):
        number = struct.unpack_from("<I", data, position)[0]
        if number not in FIELDS:
            break
        kind = ActivityKind(number)
        layout = STRUCTS[kind]
        size = -(-layout.size // 8) * 8
        if position + size > len(data):
            break
        values = layout.unpack_from(data, position)
        row = []
        for (name, _), value in zip(FIELDS[kind], values):
            if name in TEXT_FIELDS[kind]:
                text = ctypes.string_at(value) if value else b""
                row.append(text.decode("utf-8", "surrogateescape"))
            else:
                row.append(value)
        rows.setdefault(kind, []).append(tuple(row))
        position += size
    return rows, len(data) - position


def rows_of(decoded: Decoded) -> dict[ActivityKind, list[tuple[Any, ...]]]:
    rows = {}
    for batch in decoded.batches:
        columns = [
            batch.text(name).tolist()
            if name in TEXT_FIELDS[batch.kind]
            else batch.records[name].tolist()
            for name, _ in FIELDS[batch.kind]
        ]
        rows[batch.kind] = list(zip(*columns))
    return rows


NUMBERS = {
    "<u4": st.sampled_from([0, 1, 7, 2**31, 2**32 - 1]),
    "<u8": st.sampled_from([0, 1, 10**18, 2**63, 2**64 - 1]),
    "<f8": st.floats(allow_nan=False),
    "u1": st.integers(0, 255),
}
TEXTS = st.one_of(
    st.none(),
    st.sampled_from([b"MatMul", b"\xff\xfe", "算子".encode(), b"", b"a\nb\t\x01", b"\xed\xa0\x80"]),
    st.binary(max_size=40).map(lambda text: text.replace(b"\0", b"")),
)


@st.composite
def records(draw: st.DrawFn) -> Record:
    kind = draw(st.sampled_from(list(ActivityKind)))
    return kind, {
        name: draw(TEXTS if name in TEXT_FIELDS[kind] else NUMBERS[code])
        for name, code in FIELDS[kind][1:]
    }


def fill(described: list[Record]) -> Memory:
    memory = Memory()
    for kind, values in described:
        pointers = {
            name: 0 if values[name] is None else memory.string(values[name])
            for name in TEXT_FIELDS[kind]
        }
        memory.append(kind, **{**values, **pointers})
    return memory


@settings(max_examples=60, deadline=None)
@given(
    described=st.lists(records(), max_size=25),
    cut=st.one_of(st.just(0), st.integers(1, 80)),
    tail=st.binary(max_size=9),
)
def test_mixed_kinds_are_decoded_as_one_by_one(
    described: list[Record], cut: int, tail: bytes
) -> None:
    memory = fill(described)
    if cut:
        del memory.data[max(0, len(memory.data) - cut) :]
    else:
        memory.data += tail  # never both: together they could make up a record with wild pointers
    expected, lost = decode_one_by_one(bytes(memory.data))
    decoded = decode(memory.array())
    assert rows_of(decoded) == expected
    assert decoded.lost_bytes == lost


@pytest.mark.parametrize("kind", list(ActivityKind))
def test_one_kind_alone_is_decoded_as_one_by_one(kind: ActivityKind) -> None:
    memory = Memory()
    pointers = [0, *(memory.string(b"text %d" % number) for number in range(700))]
    for number in range(1500):
        values = {name: number * 7919 % 251 for name, _ in FIELDS[kind][1:]}
        for place, name in enumerate(TEXT_FIELDS[kind]):
            values[name] = pointers[number * (place + 3) % len(pointers)]
        memory.append(kind, **values)
    expected, _ = decode_one_by_one(bytes(memory.data))
    assert rows_of(decode(memory.array())) == expected


def test_many_distinct_texts_survive_a_crowded_table() -> None:
    memory = Memory()
    names = [memory.string(b"kernel %d" % number) for number in range(20_000)]
    for name in [*names, *reversed(names)]:
        memory.append(ActivityKind.Kernel, name=name)
    expected = [f"kernel {number}" for number in range(20_000)]
    (batch,) = decode(memory.array()).batches
    assert batch.text("name").tolist() == expected + expected[::-1]


def test_unknown_kind_keeps_what_came_before_and_counts_the_rest() -> None:
    memory = Memory()
    memory.append(ActivityKind.Kernel, start_ns=1, end_ns=2)
    memory.data += struct.pack("<I", 77) + b"\0" * 20
    memory.append(ActivityKind.Kernel)
    decoded = decode(memory.array())
    assert [len(batch) for batch in decoded.batches] == [1]
    assert decoded.unknown_kind == 77
    assert decoded.lost_bytes == 24 + 56


def test_cut_record_is_counted_and_not_called_unknown() -> None:
    memory = Memory()
    memory.append(ActivityKind.Memory, size_bytes=8)
    memory.append(ActivityKind.MemSet)
    del memory.data[-1:]
    decoded = decode(memory.array())
    assert [batch.kind for batch in decoded.batches] == [ActivityKind.Memory]
    assert (decoded.lost_bytes, decoded.unknown_kind) == (55, None)


def test_empty_buffer_has_no_batches() -> None:
    decoded = decode(np.empty(0, np.uint8))
    assert decoded == Decoded((), 0, None)


@pytest.mark.parametrize("second", [ActivityKind.Kernel, ActivityKind.API])
def test_batches_do_not_change_when_buffer_and_strings_are_reused(second: ActivityKind) -> None:
    memory = Memory()
    memory.append(ActivityKind.Kernel, start_ns=5, name=memory.string(b"first"))
    memory.append(second, start_ns=6, name=memory.string(b"other"))
    data = memory.array()
    decoded = decode(data)
    before = rows_of(decoded)
    data[:] = 0xFF
    for string in memory.strings:
        ctypes.memset(string, 0x41, len(string) - 1)
    assert rows_of(decoded) == before


def test_each_string_is_read_once_per_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []

    def string_at(pointer: int) -> bytes:
        reads.append(pointer)
        return ctypes.string_at(pointer)

    monkeypatch.setattr(texts, "string_at", string_at)
    memory = Memory()
    pointers = [memory.string(b"MatMul"), memory.string(b"Softmax"), memory.string(b"MatMul")]
    for number in range(3000):
        kind = (ActivityKind.Kernel, ActivityKind.API)[number % 2]
        memory.append(kind, name=pointers[number % 3])
    batches = decode(memory.array()).batches
    assert sorted(reads) == sorted(pointers)
    assert [set(batch.strings) for batch in batches] == [{"", "MatMul", "Softmax"}] * 2


def test_null_is_the_empty_text_and_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "string_at", lambda pointer: pytest.fail(f"read {pointer:#x}"))
    memory = Memory()
    memory.append(ActivityKind.Communication)
    memory.append(ActivityKind.Marker)
    for batch in decode(memory.array()).batches:
        assert batch.strings == ("",)
        assert batch.text("name").tolist() == [""]

"""Record layouts, batches and their wire form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msmon.records.batch import Batch, concatenate, decode_texts, encode_texts, printable
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind
from msmon.records.layout import TEXT_FIELDS

C_SIZES = {
    ActivityKind.Marker: 56,
    ActivityKind.Kernel: 56,
    ActivityKind.API: 48,
    ActivityKind.Hccl: 56,
    ActivityKind.Memory: 64,
    ActivityKind.MemSet: 56,
    ActivityKind.MemCpy: 56,
    ActivityKind.ExternalCorrelation: 24,
    ActivityKind.Communication: 72,
    ActivityKind.AclAPI: 48,
    ActivityKind.NodeAPI: 48,
    ActivityKind.RuntimeAPI: 48,
}


def kernels(*names: str) -> Batch:
    strings = tuple(dict.fromkeys(("", *names)))
    records = np.zeros(len(names), DTYPES[ActivityKind.Kernel])
    records["kind"] = ActivityKind.Kernel
    records["name"] = [strings.index(name) for name in names]
    records["start_ns"] = np.arange(len(names))
    return Batch(ActivityKind.Kernel, records, strings)


@pytest.mark.parametrize("kind", list(ActivityKind))
def test_sizes_are_those_of_the_c_structs(kind: ActivityKind) -> None:
    assert DTYPES[kind].itemsize == C_SIZES[kind]


def test_every_kind_begins_with_its_number_and_has_its_text_fields() -> None:
    for kind, dtype in DTYPES.items():
        assert dtype.fields is not None
        assert dtype.fields["kind"][1] == 0
        assert set(TEXT_FIELDS[kind]) <= set(dtype.names or ())


def test_a_batch_survives_its_frames() -> None:
    batch = kernels("MatMul", "\udcff", "算子", "")
    copy = Batch.from_frames(batch.kind, *batch.to_frames())
    assert copy.records.tolist() == batch.records.tolist()
    assert copy.text("name").tolist() == ["MatMul", "\udcff", "算子", ""]


def test_frames_that_do_not_fit_are_refused() -> None:
    records, strings = kernels("MatMul").to_frames()
    with pytest.raises(ValueError, match="no whole number of Kernel records"):
        Batch.from_frames(ActivityKind.Kernel, records[:-1], strings)
    with pytest.raises(ValueError, match="another kind"):
        Batch.from_frames(ActivityKind.Hccl, records, strings)
    with pytest.raises(ValueError, match="a text that was not sent"):
        Batch.from_frames(ActivityKind.Kernel, records, b"")


def test_select_keeps_order_and_shares_strings() -> None:
    batch = kernels("a", "b", "c")
    chosen = batch.select(np.array([True, False, True]))
    assert chosen.text("name").tolist() == ["a", "c"]
    assert chosen.records["start_ns"].tolist() == [0, 2]
    assert chosen.strings is batch.strings


@given(st.lists(st.lists(st.text(alphabet="ab", max_size=2), max_size=4), min_size=1, max_size=4))
def test_concatenate_joins_records_and_texts(parts: list[list[str]]) -> None:
    joined = concatenate([kernels(*names) for names in parts])
    assert joined.text("name").tolist() == [name for names in parts for name in names]
    assert joined.strings[0] == ""
    assert len(set(joined.strings)) == len(joined.strings)


@given(st.lists(st.binary(max_size=8).map(lambda raw: raw.replace(b"\0", b"")), min_size=1))
def test_texts_of_any_bytes_survive_the_wire_and_print(raw: list[bytes]) -> None:
    texts = tuple(item.decode("utf-8", "surrogateescape") for item in raw)
    assert decode_texts(encode_texts(texts)) == texts
    for text in texts:
        printable(text).encode("utf-8")


def test_printable_shows_stray_bytes() -> None:
    assert printable("a\udcff算") == "a\\xff算"

"""Activity records as columns.

A :class:`Batch` is what travels from a decoded buffer to the outputs: records of one kind, whose
text columns hold ids into the batch's own strings. :mod:`msmon.records.layout` has the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from msmon.errors import UsageError
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind
from msmon.records.layout import TEXT_FIELDS

Column = np.ndarray[Any, np.dtype[Any]]
"""An array of one field or of whole records, shape (n,)."""


@dataclass(frozen=True)
class Batch:
    """Records of one kind.

    ``records`` has shape (n,) and dtype ``DTYPES[kind]``; every field named in
    ``TEXT_FIELDS[kind]`` holds an index into ``strings``. ``strings[0]`` is always
    the empty text, which also stands for a NULL pointer. Bytes that are not UTF-8
    are kept as surrogate escapes; use :func:`printable` where text leaves msmon.
    """

    kind: ActivityKind
    records: Column
    strings: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.records)

    def text(self, field: str) -> Column:
        """Return the texts of a text field, shape (n,), dtype object."""
        table: Column = np.array(self.strings, dtype=object)
        texts: Column = table[self.records[field]]
        return texts

    def to_numpy(self) -> dict[str, Column]:
        """Return field name → contiguous array of shape (n,); text fields hold str objects."""
        return numpy_columns(self.records, self.strings, TEXT_FIELDS[self.kind])

    def to_arrow(self) -> Any:
        """Return a ``pyarrow.Table``, texts as dictionaries. Raises UsageError without pyarrow."""
        strings = [printable(text) for text in self.strings]
        return arrow_table(self.records, strings, TEXT_FIELDS[self.kind])

    def to_frames(self) -> tuple[bytes, bytes]:
        """Return (records, strings): the packed records, and the texts joined by NUL.

        A C string holds no NUL byte, so the separator can't occur inside a text.
        """
        return self.records.tobytes(), encode_texts(self.strings)

    @classmethod
    def from_frames(cls, kind: ActivityKind, records: bytes, strings: bytes) -> Batch:
        """Return the batch of :meth:`to_frames`. Raises ValueError if the frames don't match."""
        dtype = DTYPES[kind]
        if len(records) % dtype.itemsize:
            raise ValueError(f"{len(records)} bytes are no whole number of {kind.name} records")
        array = np.frombuffer(records, dtype)
        texts = decode_texts(strings)
        if len(array) and not (array["kind"] == kind).all():
            raise ValueError(f"a record in a {kind.name} batch has another kind")
        for field in TEXT_FIELDS[kind]:
            if len(array) and int(array[field].max()) >= len(texts):
                raise ValueError(f"a {kind.name} record refers to a text that was not sent")
        return cls(kind, array, texts)

    def select(self, mask: Column) -> Batch:
        """Return the records where ``mask`` (shape (n,), bool) is true. Strings are shared."""
        chosen = np.flatnonzero(mask)
        if len(chosen) == len(self):
            return self
        # take() moves whole records; indexing by mask copies field by field, which is slow
        return Batch(self.kind, self.records.take(chosen), self.strings)


def join_columns(columns: Sequence[Column]) -> Column:
    """Concatenate structured arrays of one dtype.

    They are joined as bytes, because numpy copies structured arrays field by field.
    """
    dtype = columns[0].dtype
    parts = [np.ascontiguousarray(column).view(np.uint8) for column in columns]
    joined: Column = np.concatenate(parts).view(dtype)
    return joined


def concatenate(batches: Sequence[Batch]) -> Batch:
    """Join batches of one kind (at least one), with one table of strings."""
    filled = [batch for batch in batches if len(batch)]
    if len(filled) < 2:
        return filled[0] if filled else batches[-1]
    kind = filled[0].kind
    records = join_columns([batch.records for batch in filled])
    ids: dict[str, int] = {"": 0}
    start = 0
    for batch in filled:
        part = records[start : start + len(batch)]
        renumbered = np.array([ids.setdefault(text, len(ids)) for text in batch.strings], np.uint64)
        for field in TEXT_FIELDS[kind]:
            part[field] = renumbered[part[field]]
        start += len(batch)
    return Batch(kind, records, tuple(ids))


def encode_texts(texts: Sequence[str]) -> bytes:
    """Join texts by NUL, as UTF-8 with surrogate escapes turned back into their bytes."""
    return "\0".join(texts).encode("utf-8", "surrogateescape")


def decode_texts(data: bytes) -> tuple[str, ...]:
    """Reverse :func:`encode_texts`; the result has at least one text."""
    return tuple(data.decode("utf-8", "surrogateescape").split("\0"))


def printable(text: str) -> str:
    """Return ``text`` as valid Unicode: bytes that were not UTF-8 become ``\\xNN``."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def numpy_columns(
    records: Column, strings: Sequence[str], text_fields: Sequence[str]
) -> dict[str, Column]:
    """Return field name → array of shape (n,), contiguous; text fields as objects (str)."""
    texts: Column = np.array(strings, dtype=object)
    return {
        name: texts[records[name]] if name in text_fields else np.ascontiguousarray(records[name])
        for name in _names(records)
    }


def arrow_table(records: Column, strings: Sequence[str], text_fields: Sequence[str]) -> Any:
    """Return a ``pyarrow.Table`` with a column per field; texts are dictionary-encoded.

    Numbers that are not finite become null. ``strings`` must be valid Unicode. Raises
    UsageError when pyarrow is not installed.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise UsageError("pyarrow is not installed", "pip install pyarrow") from None
    dictionary = pa.array(list(strings), pa.string())
    columns = {}
    for name in _names(records):
        values = np.ascontiguousarray(records[name])
        if name in text_fields:
            indices = pa.array(values.astype(np.int32))
            columns[name] = pa.DictionaryArray.from_arrays(indices, dictionary)
        elif values.dtype.kind == "f":
            columns[name] = pa.array(values, mask=~np.isfinite(values))
        else:
            columns[name] = pa.array(values)
    return pa.table(columns)


def _names(records: Column) -> tuple[str, ...]:
    names = records.dtype.names
    assert names is not None
    return names

"""One completed activity buffer to batches: the place where pointers end.

The records of each kind are gathered into columns of their own and every
``char*`` is replaced by a text id, so that nothing refers to the buffer or to
MSPTI's memory any more once :func:`decode` has returned.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from msmon.ffi import walk
from msmon.ffi.texts import TextIds, TextReader
from msmon.records.batch import Batch, Column
from msmon.records.kinds import ActivityKind
from msmon.records.layout import TEXT_FIELDS

_CHUNK_RECORDS = 8_192
"""Records handled at once, so that they and the temporaries stay in the processor's cache."""

_FIRST_CHUNK_RECORDS = 512
"""The first chunk meets most texts for the first time, which is slow, so it is kept small."""


@dataclass(frozen=True)
class Decoded:
    """What one buffer held: one batch per kind met.

    ``lost_bytes`` counts the bytes after the last record that could be read: from
    an unknown kind (then ``unknown_kind`` is its number) or a record cut short. ``failed``: kind
    name → its records that could not be decoded, and ``error`` says why.
    """

    batches: tuple[Batch, ...]
    lost_bytes: int
    unknown_kind: int | None
    failed: dict[str, int] = field(default_factory=dict)
    error: Exception | None = None


def decode(data: Column) -> Decoded:
    """Decode the valid bytes of one buffer (uint8, shape (n,)).

    The strings behind the pointers are read here, so this must run in the process
    that recorded them. The batches own their memory. An unforeseen error, say that there is no
    memory for a very long text, costs the records of that kind alone.
    """
    split = walk.split(data)
    reader = TextReader()
    batches = []
    failed: dict[str, int] = {}
    failure: Exception | None = None
    for kind, records in split.parts.items():
        if not len(records):
            continue
        borrowed = np.may_share_memory(records, data)
        try:
            batches.append(_batch(kind, records, borrowed, reader))
        except Exception as error:  # noqa: BLE001 - whatever it is, the other kinds are read
            failed[kind.name] = len(records)
            failure = error
    lost_bytes = len(data) - split.read_bytes
    return Decoded(tuple(batches), lost_bytes, split.unknown_kind, failed, failure)


def _batch(kind: ActivityKind, records: Column, borrowed: bool, reader: TextReader) -> Batch:
    """Replace the pointers of one kind, in place unless the memory is ``borrowed``."""
    source = records.view(np.uint8).reshape(len(records), -1)
    if borrowed:
        records = np.empty(source.nbytes, np.uint8).view(records.dtype)
    target = records.view(np.uint8).reshape(len(records), -1)
    columns = [records[field] for field in TEXT_FIELDS[kind]]
    ids = TextIds(reader)
    start, size = 0, _FIRST_CHUNK_RECORDS
    while start < len(records):
        chunk = slice(start, start + size)
        if borrowed:
            target[chunk] = source[chunk]  # as bytes: padded records are copied field by field
        for column in columns:
            column[chunk] = ids.ids(np.ascontiguousarray(column[chunk]))
        start, size = start + size, _CHUNK_RECORDS
    return Batch(kind, records, ids.texts)

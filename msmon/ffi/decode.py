"""One completed activity buffer to batches: the place where pointers end.

The records of each kind are gathered into columns of their own and every
``char*`` is replaced by a text id, so that nothing refers to the buffer or to
MSPTI's memory any more once :func:`decode` has returned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from msmon.ffi import walk
from msmon.ffi.texts import TextIds, TextReader
from msmon.kinds import ActivityKind
from msmon.records import TEXT_FIELDS, Batch, Column


@dataclass(frozen=True)
class Decoded:
    """What one buffer held: one batch per kind met.

    ``lost_bytes`` counts the bytes after the last record that could be read: from
    an unknown kind (then ``unknown_kind`` is its number) or a record cut short.
    """

    batches: tuple[Batch, ...]
    lost_bytes: int
    unknown_kind: int | None


def decode(data: Column) -> Decoded:
    """Decode the valid bytes of one buffer (uint8, shape (n,)).

    The strings behind the pointers are read here, so this must run in the process
    that recorded them. The batches own their memory.
    """
    split = walk.split(data)
    reader = TextReader()
    batches = tuple(
        _batch(kind, _owned(records, data), reader)
        for kind, records in split.parts.items()
        if len(records)
    )
    return Decoded(batches, len(data) - split.read_bytes, split.unknown_kind)


def _owned(records: Column, data: Column) -> Column:
    if not np.may_share_memory(records, data):
        return records
    # as bytes: a padded record would be copied field by field
    copied: Column = records.view(np.uint8).copy().view(records.dtype)
    return copied


def _batch(kind: ActivityKind, records: Column, reader: TextReader) -> Batch:
    ids = TextIds(reader)
    for field in TEXT_FIELDS[kind]:
        ids.replace(records[field])
    return Batch(kind, records, ids.texts)

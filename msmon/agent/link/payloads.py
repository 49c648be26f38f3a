"""Turns batches into payload frames that hold only the texts they use and are not too long."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from msmon.bus.codec import MAX_PAYLOAD_FRAME_BYTES
from msmon.records.batch import Batch
from msmon.records.layout import TEXT_FIELDS
from msmon.records.windows import CUT_MARK

MAX_TEXT_CHARACTERS = 1 << 20
"""A text of a single record that does not fit a frame is cut here. A record has three texts at
most, and UTF-8 takes up to four bytes for a character."""


def payloads_of(batch: Batch) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    """Yield (records, frames), in several parts where the texts are too long for one frame."""
    parts = [batch]
    while parts:
        part = parts.pop()
        compact = with_used_texts(part)
        payload = compact.to_frames()
        if max(map(len, payload)) <= MAX_PAYLOAD_FRAME_BYTES:
            yield len(part), payload
            continue
        if len(part) == 1:
            yield 1, _with_short_texts(compact).to_frames()
            continue
        middle = len(part) // 2
        for half in (part.records[middle:], part.records[:middle]):
            parts.append(Batch(part.kind, half, part.strings))


def _with_short_texts(record: Batch) -> Batch:
    """Return a batch of one record with texts that fit a frame together, whatever they are."""
    texts = tuple(
        text if len(text) <= MAX_TEXT_CHARACTERS else text[: MAX_TEXT_CHARACTERS - 1] + CUT_MARK
        for text in record.strings
    )
    return Batch(record.kind, record.records, texts)


def with_used_texts(batch: Batch) -> Batch:
    """Return the batch with only those strings that its records refer to.

    A filter keeps the strings of the whole buffer; without this, one record would
    carry them all over the wire.
    """
    fields = TEXT_FIELDS[batch.kind]
    used = np.zeros(len(batch.strings), bool)
    used[0] = True
    for name in fields:
        used[batch.records[name].astype(np.int64)] = True
    if used.all():
        return batch
    new_id = np.cumsum(used, dtype=np.uint64) - np.uint64(1)
    records = batch.records.copy()
    for name in fields:
        records[name] = new_id[records[name].astype(np.int64)]
    kept = np.flatnonzero(used).tolist()
    return Batch(batch.kind, records, tuple(batch.strings[index] for index in kept))

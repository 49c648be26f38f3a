"""Pairing markers: start and end records to ranges, host names to device ranges.

MSPTI writes one record per end of a range and per source, names only the host's first one, and
promises no order across buffers (mspti_activity.h, msptiActivityMarker). A range that the
device takes part in is four records of one id::

    host start (name, domain, thread)    host end
    device start (device, stream)        device end

They become two events, the host's and the device's, each as soon as its own records are there.
What is incomplete waits for later batches.

Ranks ship marker records as they are, and every output pairs them again with this class. See
docs/architecture.md for why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from msmon.records.batch import (
    Batch,
    Column,
    arrow_table,
    decode_texts,
    encode_texts,
    join_columns,
    numpy_columns,
    printable,
)
from msmon.records.layout import EVENT_TEXT_FIELDS
from msmon.records.marker_slots import (
    PART_DTYPE,
    Role,
    complete_events,
    parts_of,
    slots_of,
    still_waiting,
)

OPEN_RECORDS = 1 << 16
"""Records that may wait for their counterpart."""

LATE_BATCHES = 64
"""Marker batches for which an end or a device record waits for its host start. MSPTI has at
most as many buffers out as the arena has slots (32), so nothing comes later than that."""

_EVICTION_ORDER = np.array(
    [
        {Role.NAMER: 0, Role.DEVICE_START: 1, Role.DEVICE_END: 1, Role.DEVICE_MARK: 1}.get(role, 2)
        for role in Role
    ]
)
"""Role → which records make room first where too many wait; of equals the oldest."""

_RECORDS_PIECE, _TEXTS_PIECE = "waiting_markers ", "waiting_texts "
_PIECE_BATCH_BITS, _PIECE_ID_BITS, _PIECE_TEXTS = 4, 10, 1024
"""A piece holds records of 16 batches and 1024 ids that follow each other, or 1024 texts."""

_SPARE_TEXTS = 4096
"""Texts beyond two per waiting record that are kept before the unused ones are looked for."""


@dataclass(frozen=True)
class MarkerEvents:
    """Ranges and marks that one batch completed, and what became of the others since the last.

    ``events`` has shape (n,) and dtype ``EVENT_DTYPE``.
    """

    events: Column
    strings: tuple[str, ...]
    orphan_ends: int = 0
    """Ends and device records given up because no host start came."""
    evicted_starts: int = 0
    """Ranges given up, though they may still end, because too many records waited."""
    open_ranges: int = 0
    """Ranges that wait for their end now."""

    def __len__(self) -> int:
        return len(self.events)

    def to_numpy(self) -> dict[str, Column]:
        """Return field name → contiguous array of shape (n,); text fields hold str objects."""
        return numpy_columns(self.events, self.strings, EVENT_TEXT_FIELDS)

    def to_arrow(self) -> Any:
        """Return a ``pyarrow.Table``, texts as dictionaries. Raises UsageError without pyarrow."""
        strings = [printable(text) for text in self.strings]
        return arrow_table(self.events, strings, EVENT_TEXT_FIELDS)


class MarkerPairing:
    """Pairs the markers of one process across batches. Belongs to one thread.

    Records of one id may come in any order and in different batches; a second record of the
    same role and id while the first one waits counts as an orphan. ``limit`` bounds the records
    that wait (None: ``OPEN_RECORDS``). Beyond it the names of finished ranges go first, then
    device records, then the oldest of the others.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = OPEN_RECORDS if limit is None else limit
        self._waiting = np.empty(0, PART_DTYPE)
        self._texts: dict[str, int] = {"": 0}
        """Text → id, of all waiting records and of some that have gone."""
        self._age = 0
        """Number of the current batch."""

    @property
    def open_ranges(self) -> int:
        """Host ranges that have begun and not ended."""
        return int((self._waiting["role"] == Role.HOST_START).sum())

    @property
    def waiting(self) -> Column:
        """The records that wait for others of their id, shape (n,), dtype ``PART_DTYPE``."""
        return self._waiting

    @property
    def texts_kept(self) -> int:
        """Texts in memory: those of waiting records, and a bounded number of others."""
        return len(self._texts)

    def add(self, batch: Batch) -> MarkerEvents:
        """Take a batch of markers; return the events that are complete now."""
        self._age += 1
        known = self._texts
        ids = np.array([known.setdefault(text, len(known)) for text in batch.strings], np.uint32)
        parts = join_columns([self._waiting, parts_of(batch.records, ids, self._age)])
        slots, doubles = slots_of(parts)
        events = complete_events(parts, slots)
        orphans, evicted = self._keep(still_waiting(parts, slots))
        strings = self._own_strings(events)
        return MarkerEvents(events, strings, orphans + doubles, evicted, self.open_ranges)

    def to_frames(self) -> tuple[bytes, bytes]:
        """Return the waiting records and their texts as bytes, to go on in another process."""
        return self._waiting.tobytes(), encode_texts(tuple(self._texts))

    def restore(self, waiting: bytes, texts: bytes) -> None:
        """Go on from ``to_frames``. Raises ValueError when the frames don't fit together."""
        self._go_on(np.frombuffer(waiting, PART_DTYPE).copy(), decode_texts(texts))

    def to_pieces(self) -> dict[str, bytes]:
        """Return the same as ``to_frames`` in named pieces, most of which stay as they are.

        So who stores them often writes the changed ones only. A waiting record never leaves its
        piece, which its batch and its id determine: ids mostly come from a counter, so records
        that come and go together are in one piece. Texts are added at the end, until the unused
        ones are forgotten.
        """
        batches = self._waiting["age"].astype(np.uint64) >> np.uint64(_PIECE_BATCH_BITS)
        keys = (batches << np.uint64(40)) ^ (self._waiting["id"] >> np.uint64(_PIECE_ID_BITS))
        order = np.argsort(keys, kind="stable")
        keys, sorted_parts = keys[order], self._waiting.take(order)
        cuts = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(keys)]
        pieces = {
            f"{_RECORDS_PIECE}{int(keys[begin]):x}": sorted_parts[begin:end].tobytes()
            for begin, end in zip(cuts, cuts[1:])
            if begin < end
        }
        texts = tuple(self._texts)
        for begin in range(0, len(texts), _PIECE_TEXTS):
            name = f"{_TEXTS_PIECE}{begin // _PIECE_TEXTS}"
            pieces[name] = encode_texts(texts[begin : begin + _PIECE_TEXTS])
        return pieces

    def restore_pieces(self, pieces: Mapping[str, bytes]) -> None:
        """Go on from ``to_pieces``; other names are ignored. Raises ValueError."""
        records = b"".join(
            piece for name, piece in pieces.items() if name.startswith(_RECORDS_PIECE)
        )
        parts = np.frombuffer(records, PART_DTYPE)
        texts: list[str] = []
        while (piece := pieces.get(f"{_TEXTS_PIECE}{len(texts) // _PIECE_TEXTS}")) is not None:
            texts += decode_texts(piece)
            if len(texts) % _PIECE_TEXTS:
                break
        self._go_on(parts.take(np.argsort(parts["age"], kind="stable")), tuple(texts or [""]))

    def _go_on(self, parts: Column, known: tuple[str, ...]) -> None:
        if len(parts) and (
            max(int(parts["name"].max()), int(parts["domain"].max())) >= len(known)
            or int(parts["role"].max()) >= len(Role)
        ):
            raise ValueError("waiting markers refer to a text or role that does not exist")
        self._waiting = parts
        self._texts = {text: place for place, text in enumerate(known)}
        self._age = int(parts["age"].max()) if len(parts) else 0

    def _keep(self, waiting: Column) -> tuple[int, int]:
        """Keep what waits, within the bounds; return (orphan ends, evicted starts).

        A host range that is finished waits on to name the device's part, which may never come
        whole. Thousands of those must not push out a range that is still open, so their names go
        first and then the device's records. A name counts for nothing: should its device records
        come after all, those are the orphans.
        """
        role = waiting["role"]
        has_no_start = (role != Role.HOST_START) & (role != Role.NAMER)
        dropped = has_no_start & (self._age - waiting["age"] >= LATE_BATCHES)
        excess = len(waiting) - int(dropped.sum()) - self._limit
        if excess > 0:
            candidates = np.flatnonzero(~dropped)
            least_wanted = np.argsort(_EVICTION_ORDER[role[candidates]], kind="stable")
            dropped[candidates[least_wanted[:excess]]] = True
        self._waiting = waiting.take(np.flatnonzero(~dropped))
        orphans = int((dropped & has_no_start).sum())
        return orphans, int((dropped & (role == Role.HOST_START)).sum())

    def _own_strings(self, events: Column) -> tuple[str, ...]:
        """Renumber the texts of events so that they carry only their own; forget unused ones."""
        ours = list(self._texts)
        used = _renumber(events, len(ours))
        if len(ours) > 2 * len(self._waiting) + _SPARE_TEXTS:
            still_used = _renumber(self._waiting, len(ours))
            self._texts = {ours[number]: place for place, number in enumerate(still_used.tolist())}
        return tuple(ours[number] for number in used.tolist())


def _renumber(rows: Column, texts: int) -> Column:
    """Number the texts that rows use from 0 on, in place; return their old numbers."""
    is_used = np.zeros(texts, dtype=bool)
    is_used[0] = True  # the empty text stays first
    for field in EVENT_TEXT_FIELDS:
        is_used[rows[field]] = True
    number = np.cumsum(is_used, dtype=np.uint32) - np.uint32(1)
    for field in EVENT_TEXT_FIELDS:
        rows[field] = number[rows[field]]
    used: Column = np.flatnonzero(is_used)
    return used

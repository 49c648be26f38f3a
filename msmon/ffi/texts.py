"""Turning ``char*`` columns of a buffer into text ids.

A buffer holds a hundred thousand pointers and a few hundred texts. Sorting every pointer would
cost more than all other decoding, so whole columns are looked up in a small table: a pointer
times an odd constant, of which the topmost bits are its slot. The slot holds the pointer that
owns it, which is compared, so a wrong answer is not possible. Pointers that don't own their slot
(new ones, and the few that share a slot with another) are looked up one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from ctypes import string_at
from dataclasses import dataclass

import numpy as np

from msmon.records.batch import Column

_MULTIPLIERS = tuple(
    np.uint64(number)
    for number in (
        0x9E3779B97F4A7C15,
        0xD6E8FEB86659FD93,
        0xC2B2AE3D27D4EB4F,
        0xA0761D6478BD642F,
        0xE7037ED1A0B428DB,
        0x8EBC6AF09C88C6E3,
    )
)
"""Odd 64-bit constants; the first one without collisions is taken."""

_LEAST_BITS, _MOST_BITS = 8, 16
"""Size of the table: large enough to be free of collisions mostly, small enough for the cache."""


class TextReader:
    """Reads each C string of one buffer once.

    Not to be kept beyond the buffer: MSPTI doesn't promise that an address means
    the same text for ever (mspti_activity.h).
    """

    def __init__(self) -> None:
        self._texts: dict[int, str] = {0: ""}

    def read(self, pointers: Sequence[int]) -> list[str]:
        """Return the texts at the pointers; NULL is the empty text.

        Bytes that are not UTF-8 are kept as surrogate escapes.
        """
        texts = self._texts
        for pointer in pointers:
            if pointer not in texts:
                texts[pointer] = string_at(pointer).decode("utf-8", "surrogateescape")
        return [texts[pointer] for pointer in pointers]


class TextIds:
    """Ids of the texts behind the pointers of one batch; id 0 is the empty text."""

    def __init__(self, reader: TextReader) -> None:
        self._reader = reader
        self._id_of_text: dict[str, int] = {"": 0}
        self._id_of_pointer: dict[int, int] = {0: 0}
        self._table = _table_of(self._id_of_pointer)

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts met so far, in order of their ids."""
        return tuple(self._id_of_text)

    def ids(self, pointers: Column) -> Column:
        """Return the ids (uint64) of pointers (uint64, shape (n,), contiguous)."""
        ids, missed = self._look_up(pointers)
        if len(missed) and self._learn(pointers[missed].tolist()):
            ids, missed = self._look_up(pointers)
        if len(missed):  # pointers without a slot of their own
            known = self._id_of_pointer
            ids[missed] = [known[pointer] for pointer in pointers[missed].tolist()]
        return ids

    def _look_up(self, pointers: Column) -> tuple[Column, Column]:
        """Return the ids, and the places of those that the table doesn't know."""
        table = self._table
        slots = table.slots(pointers)
        missed = np.flatnonzero(table.pointers.take(slots) != pointers)
        return table.ids.take(slots), missed

    def _learn(self, pointers: list[int]) -> bool:
        """Give ids to the pointers that have none; return whether there were any."""
        known, numbers = self._id_of_pointer, self._id_of_text
        new = [pointer for pointer in dict.fromkeys(pointers) if pointer not in known]
        for pointer, text in zip(new, self._reader.read(new)):
            known[pointer] = numbers.setdefault(text, len(numbers))
        if new:
            self._table = _table_of(known)
        return bool(new)


@dataclass(frozen=True)
class _Table:
    """Slot of a pointer → the pointer that holds it, and its id.

    An empty slot holds pointer 0 and id 0, which is what NULL means anyway.
    """

    multiplier: np.uint64
    shift: np.uint64
    pointers: Column
    ids: Column

    def slots(self, pointers: Column) -> Column:
        slots: Column = ((pointers * self.multiplier) >> self.shift).view(np.int64)
        return slots


def _table_of(id_of_pointer: dict[int, int]) -> _Table:
    """Return a table in which each pointer has its own slot, or nearly so.

    Constants and sizes are tried in turn until no two pointers share a slot, or the table
    would leave the cache. Of pointers that share one, the one met first owns it, for a text that
    occurs early in a buffer is likely to be a frequent one.
    """
    count = len(id_of_pointer)
    # backwards, since the last one written to a slot stays
    pointers = np.fromiter(id_of_pointer, np.uint64, count)[::-1]
    ids = np.fromiter(id_of_pointer.values(), np.uint64, count)[::-1]
    bits = max(_LEAST_BITS, (count * count // 4).bit_length())
    sizes = range(bits, _MOST_BITS + 1) or (_MOST_BITS,)
    for bits, multiplier in itertools.product(sizes, _MULTIPLIERS):
        empty = np.zeros(1 << bits, np.uint64)
        table = _Table(multiplier, np.uint64(64 - bits), empty, np.zeros(1 << bits, np.uint64))
        slots = table.slots(pointers)
        table.pointers[slots] = pointers
        table.ids[slots] = ids
        if bits == _MOST_BITS or not (table.pointers.take(slots) != pointers).any():
            break
    return table

"""Turning ``char*`` columns of a buffer into text ids.

A buffer holds a hundred thousand pointers and a few hundred texts. Sorting every
pointer would cost more than all other decoding, so pointers are looked up in a
small table by a multiplicative hash, and each hit is verified against the
pointer itself; only what is missed is sorted and looked up one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import string_at
from typing import Any

import numpy as np

from msmon.records import Column

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
"""Odd 64-bit constants; the one with the fewest collisions is taken."""

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
        self._rebuild()

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
        slots = ((pointers * self._multiplier) >> self._shift).view(np.int64)
        missed = np.flatnonzero(self._table_pointers.take(slots) != pointers)
        return self._table_ids.take(slots), missed

    def _learn(self, pointers: list[int]) -> bool:
        """Give ids to the pointers that have none; return whether there were any."""
        known, numbers = self._id_of_pointer, self._id_of_text
        new = [pointer for pointer in dict.fromkeys(pointers) if pointer not in known]
        for pointer, text in zip(new, self._reader.read(new)):
            known[pointer] = numbers.setdefault(text, len(numbers))
        if new:
            self._rebuild()
        return bool(new)

    def _rebuild(self) -> None:
        """Make the table anew; where two pointers share a slot, one of them stays a miss.

        An empty slot holds pointer 0 and id 0, which is what NULL means anyway.
        """
        count = len(self._id_of_pointer)
        pointers = np.fromiter(self._id_of_pointer, np.uint64, count)
        bits = min(_MOST_BITS, max(_LEAST_BITS, (count * count // 4).bit_length()))
        self._shift: Any = np.uint64(64 - bits)
        fewest_misses = count + 1
        for number in _MULTIPLIERS:
            slots = ((pointers * number) >> self._shift).view(np.int64)
            table = np.zeros(1 << bits, np.uint64)
            table[slots] = pointers
            misses = int(np.count_nonzero(table.take(slots) != pointers))
            if misses < fewest_misses:
                fewest_misses, self._multiplier, self._table_pointers = misses, number, table
            if not misses:
                break
        slots = ((pointers * self._multiplier) >> self._shift).view(np.int64)
        held = self._table_pointers.take(slots) == pointers
        ids = np.fromiter(self._id_of_pointer.values(), np.uint64, count)
        self._table_ids = np.zeros(1 << bits, np.uint64)
        self._table_ids[slots[held]] = ids[held]

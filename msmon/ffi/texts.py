"""Turning ``char*`` columns of a buffer into text ids.

A buffer holds a hundred thousand pointers and a few hundred texts. Sorting every
pointer would cost more than all other decoding, so pointers are looked up in a
small table by a multiplicative hash, and each hit is verified against the
pointer itself; only what is missed is sorted and looked up one by one.
"""

from __future__ import annotations

from collections.abc import Collection
from ctypes import string_at
from typing import Any

import numpy as np

from msmon.records import Column

_MULTIPLIERS = (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xC2B2AE3D27D4EB4F, 0xA0761D6478BD642F)
"""Odd 64-bit constants; the one with the fewest collisions is taken."""


class TextReader:
    """Reads each C string of one buffer once.

    Not to be kept beyond the buffer: MSPTI doesn't promise that an address means
    the same text for ever (mspti_activity.h).
    """

    def __init__(self) -> None:
        self._texts: dict[int, str] = {0: ""}

    def read(self, pointers: Collection[int]) -> list[str]:
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
        slots = ((pointers * self._multiplier) >> self._shift).view(np.int64)
        ids: Column = self._table_ids.take(slots)
        missed = np.flatnonzero(self._table_pointers.take(slots) != pointers)
        if len(missed):
            ids[missed] = self._ids_of_missed(pointers[missed])
        return ids

    def _ids_of_missed(self, pointers: Column) -> Column:
        distinct, inverse = np.unique(pointers, return_inverse=True)
        known = self._id_of_pointer
        new = [pointer for pointer in distinct.tolist() if pointer not in known]
        if new:
            numbers = self._id_of_text
            for pointer, text in zip(new, self._reader.read(new)):
                known[pointer] = numbers.setdefault(text, len(numbers))
            self._rebuild()
        ids: Column = np.array([known[pointer] for pointer in distinct.tolist()], np.uint64)
        return ids[inverse]

    def _rebuild(self) -> None:
        """Make the table anew; where two pointers share a slot, one of them stays a miss.

        An empty slot holds pointer 0 and id 0, which is what NULL means anyway.
        """
        count = len(self._id_of_pointer)
        pointers = np.fromiter(self._id_of_pointer, np.uint64, count)
        bits = max(8, min(16, (count * count).bit_length()))
        self._shift: Any = np.uint64(64 - bits)
        fewest = -1
        for number in _MULTIPLIERS:
            multiplier = np.uint64(number)
            slots = (pointers * multiplier) >> self._shift
            filled = len(np.unique(slots))
            if filled > fewest:
                fewest, self._multiplier, best = filled, multiplier, slots
            if filled == count:
                break
        self._table_pointers = np.zeros(1 << bits, np.uint64)
        self._table_ids = np.zeros(1 << bits, np.uint64)
        self._table_pointers[best] = pointers
        self._table_ids[best] = np.fromiter(self._id_of_pointer.values(), np.uint64, count)

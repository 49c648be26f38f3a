"""Turning ``char*`` columns of a buffer into text ids.

A buffer holds a hundred thousand pointers and a few hundred texts. Sorting every
pointer would cost more than all other decoding, so pointers are looked up in a
small table by a multiplicative hash, and each hit is verified against the
pointer itself; only what is missed is sorted and looked up one by one.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from msmon.records import Column

CHUNK_RECORDS = 16_384
"""Records handled at once, so that the temporaries stay in the processor's cache."""

_FIRST_CHUNK_RECORDS = 512
"""The first chunk is all misses, so it is kept small."""

_MULTIPLIERS = (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xC2B2AE3D27D4EB4F, 0xA0761D6478BD642F)
"""Odd 64-bit constants; the one with the fewest collisions is taken."""


class TextReader:
    """Reads each C string of one buffer once.

    Not to be kept beyond the buffer: MSPTI doesn't promise that an address means
    the same text for ever (mspti_activity.h).
    """

    def __init__(self) -> None:
        self._texts: dict[int, str] = {0: ""}

    def read(self, pointer: int) -> str:
        """Return the text at ``pointer``; NULL is the empty text.

        Bytes that are not UTF-8 are kept as surrogate escapes.
        """
        text = self._texts.get(pointer)
        if text is None:
            text = ctypes.string_at(pointer).decode("utf-8", "surrogateescape")
            self._texts[pointer] = text
        return text


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

    def replace(self, pointers: Column) -> None:
        """Replace a column of pointers (uint64, shape (n,), any stride) by ids, in place."""
        start, size = 0, _FIRST_CHUNK_RECORDS
        while start < len(pointers):
            chunk = pointers[start : start + size]
            chunk[...] = self._ids(np.ascontiguousarray(chunk))
            start, size = start + size, CHUNK_RECORDS

    def _ids(self, pointers: Column) -> Column:
        slots = ((pointers * self._multiplier) >> self._shift).view(np.int64)
        ids: Column = self._table_ids.take(slots)
        found = self._table_pointers.take(slots) == pointers
        if not found.all():
            missed = np.flatnonzero(~found)
            ids[missed] = self._ids_of_missed(pointers[missed])
        return ids

    def _ids_of_missed(self, pointers: Column) -> Column:
        distinct, inverse = np.unique(pointers, return_inverse=True)
        known = len(self._id_of_pointer)
        ids = np.array([self._id(pointer) for pointer in distinct.tolist()], dtype=np.uint64)
        if len(self._id_of_pointer) > known:
            self._rebuild()
        missed: Column = ids[inverse]
        return missed

    def _id(self, pointer: int) -> int:
        number = self._id_of_pointer.get(pointer)
        if number is None:
            text = self._reader.read(pointer)
            number = self._id_of_text.setdefault(text, len(self._id_of_text))
            self._id_of_pointer[pointer] = number
        return number

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

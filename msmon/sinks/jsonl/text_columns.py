"""Columns to lines of text, without a Python object per line.

Lines are laid out in a byte matrix: one row per line, and for each part of a line as many
columns as its longest value needs. What a shorter value leaves free stays NUL, which no JSON
text contains, and is taken out at the end. For two lines of a name and a number::

    {"name":"MatMul","id":  7}        spaces stand for NUL here
    {"name":"Add"   ,"id":123}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Union

import numpy as np

from msmon.records.batch import Column, printable

ROWS_AT_ONCE = 4096
BYTES_AT_ONCE = 4 << 20
"""Size of one matrix. A long text makes all its lines wide, so there are fewer of them then."""

_MAX_DIGITS = 20

_TEN_THOUSAND = 10_000
_ZERO = ord("0")


def _four_digits() -> Column:
    """Return the table number → its four digits as ASCII, shape (10000, 4)."""
    numbers = np.arange(_TEN_THOUSAND)[:, None]
    digits: Column = (numbers // np.array([1000, 100, 10, 1]) % 10 + _ZERO).astype(np.uint8)
    return digits


_FOUR_DIGITS = _four_digits()


@dataclass(frozen=True)
class Texts:
    """A column of texts: line i holds ``fragments[numbers[i]]``."""

    fragments: Sequence[bytes]
    numbers: Column

    @cached_property
    def lengths(self) -> Column:
        """Length of each fragment in bytes, shape (fragments,)."""
        return np.fromiter(map(len, self.fragments), np.int64, len(self.fragments))

    @cached_property
    def longest(self) -> int:
        """Length of the longest fragment in bytes."""
        return max(map(len, self.fragments), default=0)


Part = Union[bytes, Column, Texts]
"""A part of every line: a constant, a column of non-negative integers, or a column of texts.
Columns have shape (n,) for n lines."""


def json_text(text: str) -> bytes:
    """Return a text as JSON: quoted, escaped, UTF-8 kept as it is."""
    return json.dumps(printable(text), ensure_ascii=False).encode()


def compacted(numbers: Column) -> tuple[Column, Column]:
    """Return the distinct small numbers, ascending, and each number's place among them."""
    numbers = numbers.astype(np.intp)
    used = np.flatnonzero(np.bincount(numbers))
    place_of = np.zeros(int(used[-1]) + 1, np.intp)
    place_of[used] = np.arange(len(used))
    return used, place_of[numbers]


def lines(parts: Sequence[Part], count: int) -> bytes:
    """Return ``count`` lines, each the parts one after the other."""
    chunks = []
    begin = 0
    while begin < count:
        end = _end_of_matrix(parts, begin, count)
        cells = [cell for part in parts for cell in _cells(part, begin, end)]
        width = sum(cell.shape[-1] for cell in cells)
        chunks.append(_joined(cells, end - begin, width))
        begin = end
    return b"".join(chunks)


def _end_of_matrix(parts: Sequence[Part], begin: int, count: int) -> int:
    """Return the line before which one matrix ends; it holds at least one line.

    Mostly the widths of the longest texts of all keep the bound already. Only where they don't
    is it worth looking at which texts these lines hold.
    """
    end = min(count, begin + ROWS_AT_ONCE)
    if sum(map(_width_at_most, parts)) * (end - begin) <= BYTES_AT_ONCE:
        return end
    while end - begin > 1:
        width = sum(_width_of_lines(part, begin, end) for part in parts)
        if width * (end - begin) <= BYTES_AT_ONCE:
            break
        end = begin + max(1, min((end - begin) // 2, BYTES_AT_ONCE // width))
    return end


def _width_at_most(part: Part) -> int:
    """Return how many bytes a part takes in no line more than."""
    if isinstance(part, bytes):
        return len(part)
    return part.longest if isinstance(part, Texts) else _MAX_DIGITS


def _width_of_lines(part: Part, begin: int, end: int) -> int:
    """Return how many bytes a part takes in the longest of these lines; the most for numbers."""
    if isinstance(part, Texts):
        return int(part.lengths[part.numbers[begin:end]].max())
    return _width_at_most(part)


def _joined(cells: Sequence[Column], count: int, width: int) -> bytearray:
    """Lay out the cells of ``count`` lines side by side and take out the padding."""
    constants = np.zeros(width, np.uint8)
    columns = []
    place = 0
    for cell in cells:
        if cell.ndim == 1:
            constants[place : place + len(cell)] = cell
        else:
            columns.append((place, cell))
        place += cell.shape[-1]
    buffer = bytearray(count * width)
    matrix = np.frombuffer(buffer, np.uint8).reshape(count, width)
    matrix[:] = constants
    for place, cell in columns:
        matrix[:, place : place + cell.shape[1]] = cell
    return buffer.translate(None, b"\0")


def _cells(part: Part, begin: int, end: int) -> list[Column]:
    """Return the bytes of a part: shape (width,) where constant, else (rows, width)."""
    if isinstance(part, bytes):
        return [np.frombuffer(part, np.uint8)]
    if isinstance(part, Texts):
        return [_text_cell(part, begin, end)]
    return _digit_cells(part[begin:end])


def _text_cell(texts: Texts, begin: int, end: int) -> Column:
    used, places = compacted(texts.numbers[begin:end])
    fragments = [texts.fragments[number] for number in used.tolist()]
    if len(fragments) == 1:
        return np.frombuffer(fragments[0], np.uint8)
    width = max(map(len, fragments))
    padded = b"".join(fragment.ljust(width, b"\0") for fragment in fragments)
    table = np.frombuffer(padded, np.uint8).reshape(len(fragments), width)
    return table.take(places, axis=0)


def _digit_cells(numbers: Column) -> list[Column]:
    """Return non-negative integers as ASCII digits: what all have in front, then the rest.

    Times of one chunk differ only in their last digits. The rest is right-aligned and
    padded left with NUL.
    """
    lowest, highest = str(int(numbers.min())), str(int(numbers.max()))
    shared = _common_start(lowest, highest) if len(lowest) == len(highest) else ""
    width = len(highest) - len(shared)
    constant = np.frombuffer(shared.encode(), np.uint8)
    if not width:
        return [constant]
    rest: Column = numbers.astype(np.uint64) - np.uint64(int(shared or 0) * 10**width)
    if width < 10:
        rest = rest.astype(np.uint32)
    groups = -(-width // 4)
    cell = np.empty((len(rest), groups, 4), np.uint8)
    for group in range(groups - 1, -1, -1):
        quotient = rest // _TEN_THOUSAND
        # numpy before 2.1 takes no unsigned 64-bit indices
        last_four = (rest - quotient * _TEN_THOUSAND).astype(np.intp)
        cell[:, group] = _FOUR_DIGITS.take(last_four, axis=0)
        rest = quotient
    digits: Column = cell.reshape(len(cell), groups * 4)[:, groups * 4 - width :]
    if len(lowest) < len(highest):
        leading = np.cumsum(digits != _ZERO, axis=1) == 0
        leading[:, -1] = False
        digits[leading] = 0
    return [constant, digits]


def _common_start(one: str, other: str) -> str:
    length = next((place for place, pair in enumerate(zip(one, other)) if len(set(pair)) > 1), None)
    return one[:length]

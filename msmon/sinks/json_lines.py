"""Columns to lines of text, without a Python object per line.

Lines are laid out in a byte matrix: one row per line, constants and texts beside
right-aligned digits. What is not filled stays NUL, which no JSON text contains, and is
taken out at the end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

import numpy as np

from msmon.records import Column, printable

ROWS_AT_ONCE = 4096
BYTES_AT_ONCE = 4 << 20

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


Part = Union[bytes, Column, Texts]
"""A part of every line: a constant, a column of integers, or a column of texts."""


def json_text(text: str) -> bytes:
    """Return a text as JSON: quoted, escaped, UTF-8 kept as it is."""
    return json.dumps(printable(text), ensure_ascii=False).encode()


def lines(parts: Sequence[Part], count: int) -> bytes:
    """Return ``count`` lines, each the parts one after the other."""
    chunks = []
    begin = 0
    while begin < count:
        end = min(count, begin + ROWS_AT_ONCE)
        cells = [_cell(part, begin, end) for part in parts]
        width = sum(cell.shape[-1] for cell in cells)
        if width * (end - begin) > BYTES_AT_ONCE and end - begin > 1:
            end = begin + max(1, BYTES_AT_ONCE // width)
            cells = [cell if cell.ndim == 1 else cell[: end - begin] for cell in cells]
        matrix = np.empty((end - begin, width), np.uint8)
        place = 0
        for cell in cells:
            matrix[:, place : place + cell.shape[-1]] = cell
            place += cell.shape[-1]
        chunks.append(matrix.tobytes().translate(None, b"\0"))
        begin = end
    return b"".join(chunks)


def _cell(part: Part, begin: int, end: int) -> Column:
    """Return the bytes of a part: shape (width,) for a constant, else (rows, width)."""
    if isinstance(part, bytes):
        return np.frombuffer(part, np.uint8)
    if isinstance(part, Texts):
        return _text_cell(part, begin, end)
    return _digits(part[begin:end])


def _text_cell(texts: Texts, begin: int, end: int) -> Column:
    used, places = np.unique(texts.numbers[begin:end], return_inverse=True)
    fragments = [texts.fragments[number] for number in used.tolist()]
    width = max(map(len, fragments))
    padded = b"".join(fragment.ljust(width, b"\0") for fragment in fragments)
    table = np.frombuffer(padded, np.uint8).reshape(len(fragments), width)
    cell: Column = table[places]
    return cell


def _digits(numbers: Column) -> Column:
    """Return non-negative integers as right-aligned ASCII digits, padded left with NUL."""
    rest = numbers.astype(np.uint64)
    width = len(str(int(rest.max())))
    narrowest = len(str(int(rest.min())))
    groups = -(-width // 4)
    cell = np.empty((len(rest), groups, 4), np.uint8)
    for group in range(groups - 1, -1, -1):
        quotient = rest // _TEN_THOUSAND
        cell[:, group] = _FOUR_DIGITS[rest - quotient * _TEN_THOUSAND]
        rest = quotient
    digits: Column = cell.reshape(len(cell), groups * 4)[:, groups * 4 - width :]
    if narrowest < width:
        leading = np.cumsum(digits != _ZERO, axis=1) == 0
        leading[:, -1] = False
        digits[leading] = 0
    return digits

"""Checks of single values that come out of files: type and range, before anything uses them.

Python helps an attacker here: ``"%999999999d" % n`` makes a text of a gigabyte where a number
was expected, True is a whole number, and an int may have thousands of digits.
"""

from __future__ import annotations

from typing import Any

from msmon.sessions import UNKNOWN_RANK, Gap

MAX_TEXT_CHARACTERS = 1 << 20
"""Longest text of a record. Names of kernels have hundreds of characters."""

MAX_RANK = 2**31 - 1
MAX_PID = 2**31 - 1
MAX_TIME_NS = 2**63 - 1
MAX_GAP_TEXT = 1000
MAX_GAP_KINDS = 100
"""Kinds in one gap; there are a dozen."""

VALUE_ERRORS = (TypeError, ValueError, OverflowError)
"""What the checks raise for a value that does not fit."""


def whole(value: Any, low: int, high: int) -> int:
    """Return the value if it is an int from ``low`` to ``high``. Raises ValueError."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError("not a whole number in range")
    return value


def unsigned(value: Any) -> int:
    """Return an int as its unsigned 64-bit value: SQLite stores 2^63 and more as negative.

    Raises ValueError for anything but an int of 64 bits.
    """
    return whole(value, -(2**63), 2**64 - 1) % 2**64


def text(value: Any, longest: int = MAX_TEXT_CHARACTERS) -> str:
    """Return the value if it is a text of at most ``longest`` characters. Raises ValueError."""
    if not isinstance(value, str) or len(value) > longest:
        raise ValueError("not a text of usable length")
    return value


def rank(value: Any) -> int:
    """Return the value if it can be a rank, or -1 for none. Raises ValueError."""
    return whole(value, UNKNOWN_RANK, MAX_RANK)


def gap(stage: Any, start_ns: Any, end_ns: Any, records: Any, reason: Any) -> Gap:
    """Return a gap from its five values. ``records``: kind → count, or None for unknown.

    Raises ValueError when one of them is not what it should be.
    """
    if records is not None:
        if not isinstance(records, dict) or len(records) > MAX_GAP_KINDS:
            raise ValueError("not a table of counts")
        records = {
            text(kind, MAX_GAP_TEXT): whole(count, 0, 2**63 - 1) for kind, count in records.items()
        }
    times = (whole(start_ns, 0, MAX_TIME_NS), whole(end_ns, 0, MAX_TIME_NS))
    return Gap(text(stage, MAX_GAP_TEXT), *times, records, text(reason, MAX_GAP_TEXT))

"""Calls into MSPTI as one recorder makes them: which one runs now, and which have failed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from msmon.errors import LibraryUnavailable, MsptiError

T = TypeVar("T")

CALL_ERRORS = (MsptiError, LibraryUnavailable)
"""What a call can raise: a result other than success, or a function that this library lacks."""


class MsptiCall(NamedTuple):
    """An MSPTI call that has not returned yet."""

    text: str
    since_monotonic_s: float


class MsptiCalls:
    """Makes calls on the caller's thread and holds no lock while they run.

    MSPTI may block for as long as its driver does. Another thread then reads ``in_progress`` and
    tells in which call. Written by the thread that makes the calls.
    """

    def __init__(self) -> None:
        self.in_progress: MsptiCall | None = None
        self.problems: list[str] = []
        """Texts of the errors of calls that were only attempted."""

    def make(self, text: str, function: Callable[..., T], *arguments: object) -> T:
        """Call ``function`` and return or raise what it does; ``text`` says what is called."""
        self.in_progress = MsptiCall(text, time.monotonic())
        try:
            return function(*arguments)
        finally:
            self.in_progress = None

    def attempt(self, text: str, function: Callable[..., object], *arguments: object) -> None:
        """Call ``function``; an error of MSPTI becomes a problem instead of an exception."""
        try:
            self.make(text, function, *arguments)
        except CALL_ERRORS as error:
            self.problems.append(str(error))

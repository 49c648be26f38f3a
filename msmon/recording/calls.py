"""Calls into MSPTI as one recorder makes them: which one runs now, and which have failed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from msmon.errors import LibraryUnavailable, MsmonError, MsptiError

T = TypeVar("T")


class CallsForbidden(MsmonError):
    """The process is about to end, and MSPTI must not be called any more."""


CALL_ERRORS = (MsptiError, LibraryUnavailable, CallsForbidden)
"""What a call can raise: a result other than success, a function that this library lacks, or
that the process ends."""


class MsptiCall(NamedTuple):
    """An MSPTI call that has not returned yet."""

    text: str
    since_monotonic_s: float


class MsptiCalls:
    """Makes calls on the caller's thread and holds no lock while they run.

    MSPTI may block for as long as its driver does. Another thread then reads ``in_progress`` and
    tells in which call. Written by the thread that makes the calls, except ``_forbidden``: the
    thread that ends the process may set it too. It is never taken back.
    """

    def __init__(self) -> None:
        self.in_progress: MsptiCall | None = None
        self._forbidden = False
        self.problems: list[str] = []
        """Texts of the errors of calls that were only attempted."""

    def make(self, text: str, function: Callable[..., T], *arguments: object) -> T:
        """Call ``function`` and return or raise what it does; ``text`` says what is called.

        Raises CallsForbidden after :meth:`forbid`.
        """
        self.in_progress = MsptiCall(text, time.monotonic())
        try:
            # Looked at only now: whoever forbids looks at ``in_progress`` afterwards. So either
            # this thread sees that calls are forbidden, or that one sees that a call is made.
            if self._forbidden:
                raise CallsForbidden(f"{text} was not called: the process ends")
            return function(*arguments)
        finally:
            self.in_progress = None

    def forbid(self) -> None:
        """Let no further call begin. One that has begun is ``in_progress`` until it returns."""
        self._forbidden = True

    @property
    def are_over(self) -> bool:
        """Whether no call runs and none can begin."""
        return self._forbidden and self.in_progress is None

    def attempt(self, text: str, function: Callable[..., object], *arguments: object) -> None:
        """Call ``function``; one of CALL_ERRORS becomes a problem instead of an exception."""
        try:
            self.make(text, function, *arguments)
        except CALL_ERRORS as error:
            self.problems.append(str(error))

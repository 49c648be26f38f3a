"""How long a text, list or map may be, and how large a number, that comes from another process.

A bound stands beside the field that it is for, as in ``host: HostName`` or
``pids: Annotated[list[int], Bound(10_000)]``. The wire's schema enforces it on everything that
arrives, so nobody can make another process keep more than the field can mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True)
class Bound:
    """The longest value of a field: characters of a text, items of a list, entries of a map."""

    most: int
    cut: bool = False
    """What is longer is cut instead of refused: right for prose, wrong for what identifies."""
    leave_out: bool = False
    """An item of a list that is wrong is left out, and does not make the whole list wrong."""


@dataclass(frozen=True)
class Span:
    """The smallest and the largest value of a whole number."""

    least: int
    most: int


MOST = 2**53
"""The largest count, and the largest step that a job may begin at. JSON readers and floats hold
whole numbers exactly up to here. A million records per second get there in 285 years."""
ORDINARY = Span(-2 * MOST, 2 * MOST)
"""Holds for every whole number that has no other span. There is room above ``MOST`` because a
job's steps and a trace go on from the step that they begin at."""
Count = Annotated[int, Span(0, MOST)]
Nanoseconds = Annotated[int, Span(-(2**63), 2**63 - 1)]
"""A time on the wall clock. Today's is about 2^60.6."""


def added(*counts: int) -> int:
    """Return the sum of counts, at most ``MOST``.

    Each part may come from somebody who lies. A sum beyond 64 bits could not be sent any more.
    """
    return min(sum(counts), MOST)


Word = Annotated[str, Bound(64)]
"""A word of the protocol, a version, the name of an option or of a kind of record."""
Identifier = Annotated[str, Bound(64)]
"""A session, a trace or a request."""
HostName = Annotated[str, Bound(255)]
JobName = Annotated[str, Bound(256)]
"""A scheduler's job, a container, a launch."""
PathText = Annotated[str, Bound(4096)]
OptionText = Annotated[str, Bound(1024)]
"""The value of an option that is a list of kinds or a filter."""
Sentence = Annotated[str, Bound(1024, cut=True)]
"""One line for people."""
Prose = Annotated[str, Bound(4096, cut=True)]
"""Text for people, such as an error with its next step."""

CountsByKind = Annotated[dict[Word, Count], Bound(64)]
"""Records per kind name. There are some thirty kinds."""
OptionValues = Annotated[dict[Word, Annotated[Any, Bound(4096)]], Bound(64)]
"""Option name to its value, which is one text, number or truth value."""

"""How long a text, a list or a map may be that comes from another process.

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

CountsByKind = Annotated[dict[Word, int], Bound(64)]
"""Records per kind name. There are some thirty kinds."""
OptionValues = Annotated[dict[Word, Annotated[Any, Bound(4096)]], Bound(64)]
"""Option name to its value, which is one text, number or truth value."""

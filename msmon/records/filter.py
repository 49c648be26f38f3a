"""Filter expressions: ``Kind:name,name;Kind:name``.

A record passes when its kind has no names to match (memory kinds), or when its
name contains one of the texts given for its kind. A filter that names some kinds
drops the other named kinds altogether. Matching is case-sensitive.
"""

from __future__ import annotations

from dataclasses import dataclass

from msmon.errors import UsageError
from msmon.records.kinds import ActivityKind, kind_named
from msmon.records.layout import NAMELESS_KINDS

MAX_FILTER_LENGTH = 1024

_EXAMPLE = 'write for example "Kernel:MatMul,Softmax;Communication:allReduce"'


@dataclass(frozen=True)
class Filter:
    """A parsed filter. ``needles`` is empty when everything passes."""

    text: str
    needles: dict[ActivityKind, tuple[str, ...]]

    @classmethod
    def parse(cls, text: str) -> Filter:
        """Parse a filter expression; empty or blank text lets everything pass.

        Raises UsageError naming the part that is empty, lacks a colon, names an
        unknown kind, or names a kind whose records have no name.
        """
        if len(text) > MAX_FILTER_LENGTH:
            raise UsageError(
                f"the filter has {len(text)} characters", f"allowed: up to {MAX_FILTER_LENGTH}"
            )
        if not text.strip():
            return cls("", {})
        needles: dict[ActivityKind, tuple[str, ...]] = {}
        for part in text.split(";"):
            kind, names = _parse_part(part)
            needles[kind] = tuple(dict.fromkeys(needles.get(kind, ()) + names))
        return cls(text, needles)

    @property
    def kinds(self) -> frozenset[ActivityKind]:
        """The kinds that the filter names."""
        return frozenset(self.needles)

    def keeps_kind(self, kind: ActivityKind) -> bool:
        """Whether any record of ``kind`` can pass."""
        return not self.needles or kind in self.needles or kind in NAMELESS_KINDS

    def keeps_name(self, kind: ActivityKind, name: str) -> bool:
        """Whether a record of ``kind`` called ``name`` passes."""
        if not self.needles or kind in NAMELESS_KINDS:
            return True
        return any(needle in name for needle in self.needles.get(kind, ()))


def _parse_part(part: str) -> tuple[ActivityKind, tuple[str, ...]]:
    kind_text, colon, names_text = part.partition(":")
    if not colon:
        raise UsageError(f"filter part {part!r} has no colon", _EXAMPLE)
    try:
        kind = kind_named(kind_text.strip())
    except UsageError as error:
        raise UsageError(f"filter part {part!r}: {error.message}", error.next_step) from None
    if kind in NAMELESS_KINDS:
        raise UsageError(
            f"filter part {part!r}: {kind.name} records have no name",
            f"collect them with --kind {kind.name}; they always pass",
        )
    names = tuple(name.strip() for name in names_text.split(","))
    if not all(names):
        raise UsageError(f"filter part {part!r} has an empty name", _EXAMPLE)
    return kind, names

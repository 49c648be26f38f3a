"""Words that cross the wire or stand in files, as enumerations."""

from __future__ import annotations

import enum


class Vocabulary(str, enum.Enum):
    """Base of the enumerations: a member is its text.

    So ``DropStage.DISK == "disk"``, both find the same entry of a dictionary, and msgpack, JSON and
    SQLite write the text.
    """

    def __str__(self) -> str:
        return str(self.value)

"""What one recording loses before its records are batches, and what it leaves out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind
from msmon.sessions import Drops, DropStage

if TYPE_CHECKING:
    from msmon.ffi.arena import BufferArena
    from msmon.ffi.decode import Decoded


class LostRecords:
    """Counts of one recording, from its start. Written by the thread of its recorder.

    ``kinds``: those enabled at any time in the recording; the recorder adds to them.
    """

    def __init__(self, arena: BufferArena, kinds: Collection[ActivityKind]) -> None:
        self.failed: Counter[str] = Counter()
        """Kind name → records that an unforeseen error kept from being decoded."""
        self.error = ""
        """The last of these errors."""
        self._arena = arena
        self._kinds = kinds
        self._overflow_bytes_at_start = arena.overflow_bytes
        self._undecoded_bytes = 0

    def note_decoded(self, decoded: Decoded) -> None:
        """Count what could not be read of a buffer."""
        self._undecoded_bytes += decoded.lost_bytes
        if decoded.error is not None:
            self.note_failed(decoded.failed, repr(decoded.error))

    def note_failed(self, records: dict[str, int], error: str) -> None:
        """Count records, per kind name, that an error kept from being decoded."""
        self.failed.update(records)
        self.error = error

    def note_unreadable(self, size_bytes: int, error: str) -> None:
        """Count a buffer of which not even the kinds of its records could be read."""
        self._undecoded_bytes += size_bytes
        self.error = error

    @property
    def size_bytes(self) -> dict[DropStage, int]:
        """Bytes lost: no free buffer (SLOTS), unreadable (DECODE)."""
        overflow = self._arena.overflow_bytes - self._overflow_bytes_at_start
        return {DropStage.SLOTS: overflow, DropStage.DECODE: self._undecoded_bytes}

    @property
    def drops(self) -> Drops:
        """Records lost, per stage; None where only bytes are known."""
        drops: Drops = {}
        for stage, lost_bytes in self.size_bytes.items():
            if lost_bytes:
                records = self.records_in(lost_bytes) if stage is DropStage.SLOTS else None
                drops[stage] = None if records is None else sum(records.values())
        if self.failed:
            drops.setdefault(DropStage.DECODE, sum(self.failed.values()))
        return drops

    def records_in(self, size_bytes: int) -> dict[str, int] | None:
        """Return kind name → number of records in so many bytes; None when that is unknown."""
        if len(self._kinds) != 1:
            return None
        (kind,) = self._kinds
        return {kind.name: size_bytes // DTYPES[kind].itemsize}

"""Tracks of a trace: which process and thread number an activity is drawn on.

The trace-event format knows processes and threads. A monitored process becomes
one of them for its host threads and one per device, whose threads are streams.
All numbers are drawn from one counter, as viewers take a thread number for global.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from msmon.records.kinds import INVALID_ID
from msmon.sessions import UNKNOWN_RANK, ProcessInfo

MAX_LANES = 64
"""Tracks for overlapping ranges of one place. A forged file could ask for one per range."""

_REMEMBERED_SIBLINGS = 1000
"""Outermost ranges of a track that are remembered at least. Of older ones only the span is known,
and a range that begins within it gets another track."""

_PAGE_BITS = 16
"""A page of seen ids has 2^16 bits: 8 KiB."""

_MAX_PAGES = 4096
"""Pages kept: 32 MiB, or 268 million ids that follow each other."""


@dataclass(frozen=True)
class Track:
    """Process and thread number in the trace."""

    pid: int
    tid: int


class ProcessTracks:
    """Tracks of one monitored process.

    ``name_track`` is called once per new process (kind "process_name", with its
    place in the order of processes) or thread (kind "thread_name").
    """

    def __init__(
        self,
        process: ProcessInfo,
        order: int,
        numbers: Iterator[int],
        name_track: Callable[[str, Track, str, int], None],
    ) -> None:
        rank = f"rank {process.rank}" if process.rank != UNKNOWN_RANK else "no rank"
        host = f" {process.host}" if process.host else ""
        self._label = f"{rank} (pid {process.pid}{host})"
        self._order = order
        self._numbers = numbers
        self._name_track = name_track
        self._pids: dict[int | None, int] = {}
        self._tracks: dict[tuple[int | None, str], Track] = {}
        self._lanes: dict[tuple[int | None, str], list[_Lane]] = {}

    def thread(self, thread_id: int, what: str) -> Track:
        """Track of a host thread; ``what`` says which activities, "AclAPI"."""
        return self._track(None, f"thread {thread_id} {what}".rstrip())

    def stream(self, device_id: int, stream_id: int, what: str = "") -> Track:
        """Track of a device's stream."""
        name = "no stream" if stream_id == INVALID_ID else f"stream {stream_id}"
        return self._track(device_id, f"{name} {what}".rstrip())

    def lane(self, device_id: int | None, name: str, start_ns: int, end_ns: int) -> Track | None:
        """Return the track for a range, the first of ``name`` where it nests.

        Viewers draw slices of one track wrongly where they overlap in part. None where the range
        does so on all of ``MAX_LANES`` tracks. Give ranges in the order of their ends, inner ones
        first; of others some are taken for overlapping that nest.
        """
        lanes = self._lanes.setdefault((device_id, name), [])
        fitting = (place for place, lane in enumerate(lanes) if lane.fits(start_ns, end_ns))
        number = next(fitting, None)
        if number is None:
            if len(lanes) == MAX_LANES:
                return None
            number = len(lanes)
            lanes.append(_Lane())
        lanes[number].put(start_ns, end_ns)
        return self._track(device_id, name if number == 0 else f"{name} ({number + 1})")

    def first_lane(self, device_id: int | None, name: str) -> Track:
        """Return the track for marks, beside the ranges of ``name`` that don't overlap."""
        return self._track(device_id, name)

    def _track(self, device_id: int | None, name: str) -> Track:
        key = (device_id, name)
        if key not in self._tracks:
            track = Track(self._pid(device_id), next(self._numbers))
            self._tracks[key] = track
            self._name_track("thread_name", track, name, len(self._tracks))
        return self._tracks[key]

    def _pid(self, device_id: int | None) -> int:
        if device_id not in self._pids:
            pid = self._pids[device_id] = next(self._numbers)
            name = self._label if device_id is None else f"{self._label} device {device_id}"
            self._name_track("process_name", Track(pid, pid), name, self._order)
        return self._pids[device_id]


class _Lane:
    """The ranges of one track.

    Only the outermost are kept. They don't overlap, so starts and ends are both sorted.
    Example: after [1, 2] and [3, 4], the range [0, 5] holds both and takes their place. The range
    [1.5, 5] would overlap [1, 2] in part, so it does not fit. What lies within an outermost range
    does not fit either, as nobody knows any more what else lies in there.
    """

    def __init__(self) -> None:
        self._starts_ns: list[int] = []
        self._ends_ns: list[int] = []
        self._forgotten: tuple[int, int] | None = None
        """First start and last end of the ranges that are not remembered any more."""

    def fits(self, start_ns: int, end_ns: int) -> bool:
        """Whether a range holds or leaves alone every range of the track."""
        if self._forgotten is not None:
            first_ns, last_ns = self._forgotten
            if not (start_ns >= last_ns or end_ns <= first_ns) and not (
                start_ns <= first_ns and end_ns >= last_ns
            ):
                return False
        begin, end = self._overlapped(start_ns, end_ns)
        if begin >= end:
            return True
        return self._starts_ns[begin] >= start_ns and self._ends_ns[end - 1] <= end_ns

    def put(self, start_ns: int, end_ns: int) -> None:
        """Add a range that fits, in place of those that it holds."""
        begin, end = self._overlapped(start_ns, end_ns)
        self._starts_ns[begin:end] = [start_ns]
        self._ends_ns[begin:end] = [end_ns]
        if len(self._starts_ns) > 2 * _REMEMBERED_SIBLINGS:
            first_ns, last_ns = self._starts_ns[0], self._ends_ns[_REMEMBERED_SIBLINGS - 1]
            if self._forgotten is not None:
                first_ns = min(first_ns, self._forgotten[0])
                last_ns = max(last_ns, self._forgotten[1])
            self._forgotten = first_ns, last_ns
            del self._starts_ns[:_REMEMBERED_SIBLINGS]
            del self._ends_ns[:_REMEMBERED_SIBLINGS]

    def _overlapped(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Return from which to before which place ranges have more than an end in common."""
        return bisect_right(self._ends_ns, start_ns), bisect_left(self._starts_ns, end_ns)


class SeenIds:
    """A set of 64-bit ids in bounded memory.

    Ids mostly come from a counter, so a page of bits serves ids that follow each other. Where there
    are too many pages the oldest goes, and its ids count as new again.
    """

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}

    def add(self, number: int) -> bool:
        """Add an id; return whether it is new."""
        page_number, place = number >> _PAGE_BITS, number & ((1 << _PAGE_BITS) - 1)
        page = self._pages.get(page_number)
        if page is None:
            if len(self._pages) >= _MAX_PAGES:
                del self._pages[next(iter(self._pages))]
            page = self._pages[page_number] = bytearray(1 << (_PAGE_BITS - 3))
        mask = 1 << (place & 7)
        new = not page[place >> 3] & mask
        page[place >> 3] |= mask
        return new


def numbering() -> Iterator[int]:
    """Return the counter that all processes of a trace share."""
    return itertools.count(1)

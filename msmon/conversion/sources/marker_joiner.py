"""From finished ranges and marks back to marker records.

Files hold finished events; targets take marker records and pair them themselves. So a source
that reads an event restates it: a host event becomes START and END (or a mark), followed by the
records of the device event of the same id, which takes its name from the host's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from msmon.conversion.sources.record_builder import Row
from msmon.records.kinds import MarkerFlag, SourceKind

WAITING_HOST_EVENTS = 20_000
"""Host events that wait for a device event of the same id; beyond it the oldest go on alone."""

WAITING_CHARACTERS = 32 << 20
"""Characters that the names of waiting events may have together; the same happens beyond."""


class HostEvent(NamedTuple):
    """A range or mark of the host. In a mark start equals end."""

    id: int
    start_ns: int
    end_ns: int
    mark: bool
    process_id: int
    thread_id: int
    end_process_id: int
    end_thread_id: int
    name: str
    domain: str

    @property
    def characters(self) -> int:
        """Length of its texts."""
        return len(self.name) + len(self.domain)


class DeviceEvent(NamedTuple):
    """The device's part of a range or mark; name and domain serve where the host's is missing."""

    id: int
    start_ns: int
    end_ns: int
    mark: bool
    device_id: int
    stream_id: int
    name: str = ""
    domain: str = ""


class MarkerJoiner:
    """Brings host and device events of one id together and gives on their marker records.

    Example: host event 7 "forward" comes in, then device event 7. Given on are the host's start
    and end with the flags of a range that has a device side, then the device's start and end
    without a name. Without the device event the host's flags are those of a range without one.
    """

    def __init__(self, give: Callable[[Row], None]) -> None:
        self._give = give
        self._waiting: OrderedDict[int, HostEvent] = OrderedDict()
        self._characters = 0

    def host(self, event: HostEvent) -> None:
        """Take a host event. It waits for the device's, which may come later in the file."""
        earlier = self._take(event.id)
        if earlier is not None:
            self._give_host(earlier, has_device=False)
        self._waiting[event.id] = event
        self._characters += event.characters
        while len(self._waiting) > WAITING_HOST_EVENTS or self._characters > WAITING_CHARACTERS:
            self._give_oldest()

    def device(self, event: DeviceEvent) -> None:
        """Take a device event; it goes on at once."""
        host = self._take(event.id)
        if host is not None:
            self._give_host(host, has_device=True)
        else:
            # A start that never ends names the device event, and is no event itself.
            self._record(
                MarkerFlag.START_WITH_DEVICE, SourceKind.HOST, event.start_ns, event.id, 0, 0,
                event.name, event.domain,
            )  # fmt: skip
        place = (event.id, event.device_id, event.stream_id, "", "")
        if event.mark:
            flag = MarkerFlag.INSTANTANEOUS_WITH_DEVICE
            self._record(flag, SourceKind.DEVICE, event.start_ns, *place)
            return
        self._record(MarkerFlag.START_WITH_DEVICE, SourceKind.DEVICE, event.start_ns, *place)
        self._record(MarkerFlag.END_WITH_DEVICE, SourceKind.DEVICE, event.end_ns, *place)

    def flush(self) -> None:
        """Give on every host event that still waits."""
        while self._waiting:
            self._give_oldest()

    def _take(self, number: int) -> HostEvent | None:
        event = self._waiting.pop(number, None)
        if event is not None:
            self._characters -= event.characters
        return event

    def _give_oldest(self) -> None:
        event = self._take(next(iter(self._waiting)))
        assert event is not None
        self._give_host(event, has_device=False)

    def _give_host(self, event: HostEvent, has_device: bool) -> None:
        start = MarkerFlag.START_WITH_DEVICE if has_device else MarkerFlag.START
        end = MarkerFlag.END_WITH_DEVICE if has_device else MarkerFlag.END
        if event.mark:
            with_device = MarkerFlag.INSTANTANEOUS_WITH_DEVICE
            start = with_device if has_device else MarkerFlag.INSTANTANEOUS
        self._record(
            start, SourceKind.HOST, event.start_ns, event.id, event.process_id, event.thread_id,
            event.name, event.domain,
        )  # fmt: skip
        if not event.mark:
            self._record(
                end, SourceKind.HOST, event.end_ns, event.id, event.end_process_id,
                event.end_thread_id, "", "",
            )  # fmt: skip

    def _record(self, flag: MarkerFlag, source: SourceKind, *rest: Any) -> None:
        self._give((int(flag), int(source), *rest))

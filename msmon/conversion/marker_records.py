"""From finished ranges and marks back to marker records.

Outputs take marker records and pair them themselves, so a source that reads finished
events restates them: a host event as START and END (or a mark), followed by the records
of the device event with the same id, which takes its name from the host's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msmon.records.kinds import MarkerFlag, SourceKind

WAITING_HOST_EVENTS = 20_000
"""Host events that wait for a device event of the same id; beyond it the oldest go on alone."""

Row = Sequence[Any]
"""Values in the order of a marker record's fields, without ``kind``."""


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
    """Brings host and device events of one id together and gives on their records."""

    def __init__(self, give: Callable[[Row], None]) -> None:
        self._give = give
        self._waiting: OrderedDict[int, HostEvent] = OrderedDict()

    def host(self, event: HostEvent) -> None:
        """Take a host event."""
        earlier = self._waiting.pop(event.id, None)
        if earlier is not None:
            self._give_host(earlier, awaited=False)
        self._waiting[event.id] = event
        if len(self._waiting) > WAITING_HOST_EVENTS:
            self._give_host(self._waiting.popitem(last=False)[1], awaited=False)

    def device(self, event: DeviceEvent) -> None:
        """Take a device event; it goes on at once."""
        host = self._waiting.pop(event.id, None)
        if host is not None:
            self._give_host(host, awaited=True)
        else:
            # a start that never ends: it names the device event and is no event itself
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
        for event in self._waiting.values():
            self._give_host(event, awaited=False)
        self._waiting.clear()

    def _give_host(self, event: HostEvent, awaited: bool) -> None:
        start = MarkerFlag.START_WITH_DEVICE if awaited else MarkerFlag.START
        end = MarkerFlag.END_WITH_DEVICE if awaited else MarkerFlag.END
        if event.mark:
            start = MarkerFlag.INSTANTANEOUS_WITH_DEVICE if awaited else MarkerFlag.INSTANTANEOUS
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

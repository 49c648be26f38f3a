"""From finished ranges and marks back to marker records.

Files hold finished events; targets take marker records and pair them themselves. So a source
that reads an event restates it: a host event becomes START and END (or a mark), followed by the
records of the device event of the same id, which takes its name from the host's.

Either may come first in a file. A device's part of a range is often complete before the host's
end is recorded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from msmon.conversion.sources.record_builder import Row
from msmon.records.kinds import MarkerFlag, SourceKind

WAITING_EVENTS = 20_000
"""Events of one side that wait for the other's of the same id; beyond it the oldest go on alone."""

WAITING_CHARACTERS = 32 << 20
"""Characters that the texts of those may have together; the same happens beyond."""


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
    """Brings host and device events of one id together and gives on their marker records.

    Example: host event 7 "forward" comes in, then device event 7. Given on are the host's start
    and end with the flags of a range that has a device side, then the device's start and end
    without a name. Without the device event the host's flags are those of a range without one.
    """

    def __init__(self, give: Callable[[Row], None]) -> None:
        self._give = give
        self._hosts: _Waiting[HostEvent] = _Waiting()
        self._devices: _Waiting[DeviceEvent] = _Waiting()

    def host(self, event: HostEvent) -> None:
        """Take a host event. It waits for the device's, unless that has come already."""
        device = self._devices.take(event.id)
        if device is not None:
            self._give_both(event, device)
            return
        for alone in self._hosts.put(event):
            self._give_host(alone, has_device=False)

    def device(self, event: DeviceEvent) -> None:
        """Take a device event. It waits for the host's, unless that has come already."""
        host = self._hosts.take(event.id)
        if host is not None:
            self._give_both(host, event)
            return
        for alone in self._devices.put(event):
            self._give_device_alone(alone)

    def flush_hosts(self) -> None:
        """Give on every host event that still waits. Device events go on waiting for theirs."""
        for event in self._hosts.take_all():
            self._give_host(event, has_device=False)

    def flush(self) -> None:
        """Give on everything: nothing more comes."""
        self.flush_hosts()
        for event in self._devices.take_all():
            self._give_device_alone(event)

    def _give_both(self, host: HostEvent, device: DeviceEvent) -> None:
        self._give_host(host, has_device=True)
        self._give_device(device)

    def _give_device_alone(self, event: DeviceEvent) -> None:
        """Give on a device event after a host start that never ends.

        That start is no event itself, but names the device's.
        """
        self._record(
            MarkerFlag.START_WITH_DEVICE, SourceKind.HOST, event.start_ns, event.id, 0, 0,
            event.name, event.domain,
        )  # fmt: skip
        self._give_device(event)

    def _give_device(self, event: DeviceEvent) -> None:
        place = (event.id, event.device_id, event.stream_id, "", "")
        if event.mark:
            flag = MarkerFlag.INSTANTANEOUS_WITH_DEVICE
            self._record(flag, SourceKind.DEVICE, event.start_ns, *place)
            return
        self._record(MarkerFlag.START_WITH_DEVICE, SourceKind.DEVICE, event.start_ns, *place)
        self._record(MarkerFlag.END_WITH_DEVICE, SourceKind.DEVICE, event.end_ns, *place)

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


Event = TypeVar("Event", HostEvent, DeviceEvent)


class _Waiting(Generic[Event]):
    """Events of one side by id, the oldest first, bounded in number and in their texts."""

    def __init__(self) -> None:
        self._events: OrderedDict[int, Event] = OrderedDict()
        self._characters = 0

    def put(self, event: Event) -> list[Event]:
        """Add an event; return those that must go: an earlier one of its id, and the oldest."""
        earlier = self.take(event.id)
        gone = [] if earlier is None else [earlier]
        self._events[event.id] = event
        self._characters += _characters(event)
        while len(self._events) > WAITING_EVENTS or self._characters > WAITING_CHARACTERS:
            _, oldest = self._events.popitem(last=False)
            self._characters -= _characters(oldest)
            gone.append(oldest)
        return gone

    def take(self, number: int) -> Event | None:
        """Remove and return the event of an id, if there is one."""
        event = self._events.pop(number, None)
        if event is not None:
            self._characters -= _characters(event)
        return event

    def take_all(self) -> list[Event]:
        """Remove and return all events."""
        events = list(self._events.values())
        self._events.clear()
        self._characters = 0
        return events


def _characters(event: HostEvent | DeviceEvent) -> int:
    return len(event.name) + len(event.domain)

"""Finished events become marker records that pair to the same events again, in whatever order."""

from __future__ import annotations

import itertools

import pytest

from msmon.conversion.sources import marker_joiner
from msmon.conversion.sources.marker_joiner import DeviceEvent, HostEvent, MarkerJoiner
from msmon.conversion.sources.record_builder import RecordBuilder
from msmon.records.batch import Batch
from msmon.records.kinds import ActivityKind, SourceKind
from msmon.records.markers import MarkerPairing

RANGE = HostEvent(7, 100, 900, False, 50, 51, 50, 51, "forward", "d")
RANGE_ON_DEVICE = DeviceEvent(7, 150, 850, False, 1, 3, "forward", "d")
MARK = HostEvent(8, 200, 200, True, 50, 51, 50, 51, "mark", "d")
MARK_ON_DEVICE = DeviceEvent(8, 250, 250, True, 1, 3, "mark", "d")
ALL = (RANGE, RANGE_ON_DEVICE, MARK, MARK_ON_DEVICE)


def paired(events: tuple[HostEvent | DeviceEvent, ...], flush_between: bool) -> set[tuple]:
    batches: list[Batch] = []
    builder = RecordBuilder(ActivityKind.Marker, batches.append)
    joiner = MarkerJoiner(builder.add)
    for event in events:
        if isinstance(event, HostEvent):
            joiner.host(event)
        else:
            joiner.device(event)
        if flush_between:
            joiner.flush_hosts()
            builder.flush()
    joiner.flush()
    builder.flush()
    pairing = MarkerPairing()
    found = set()
    for batch in batches:
        columns = pairing.add(batch).to_numpy()
        fields = ("source_kind", "id", "start_ns", "end_ns", "name", "domain")
        found |= set(zip(*(columns[field].tolist() for field in fields)))
    return found


def expected(events: tuple[HostEvent | DeviceEvent, ...]) -> set[tuple]:
    sides = {HostEvent: SourceKind.HOST, DeviceEvent: SourceKind.DEVICE}
    return {
        (int(sides[type(event)]), event.id, event.start_ns, event.end_ns, event.name, event.domain)
        for event in events
    }


@pytest.mark.parametrize("flush_between", [False, True])
@pytest.mark.parametrize("order", list(itertools.permutations(ALL)))
def test_host_and_device_events_may_come_in_any_order(
    order: tuple[HostEvent | DeviceEvent, ...], flush_between: bool
) -> None:
    assert paired(order, flush_between) == expected(ALL)


def test_events_without_the_other_side_arrive_alone() -> None:
    assert paired((RANGE, MARK_ON_DEVICE), False) == expected((RANGE, MARK_ON_DEVICE))


def test_the_oldest_go_on_alone_where_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_joiner, "WAITING_EVENTS", 2)
    hosts = tuple(RANGE._replace(id=number, name=str(number)) for number in range(10))
    devices = tuple(RANGE_ON_DEVICE._replace(id=20 + number) for number in range(10))
    assert paired((*hosts, *devices), False) == expected((*hosts, *devices))

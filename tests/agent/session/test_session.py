"""What a session counts, with a recorder that plays given batches."""

from __future__ import annotations

import numpy as np
import pytest

from msmon.agent.link.uplink import Uplink
from msmon.agent.session.answers import totals
from msmon.agent.session.session import MonitoringSession
from msmon.ffi.arena import BufferArena
from msmon.recording.lost_records import LostRecords
from msmon.records import markers
from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind, MarkerFlag
from msmon.sessions import MonitorSettings


class PlayedRecorder:
    """Gives on the batches put into ``waiting``."""

    enabled_kinds = frozenset({ActivityKind.Marker})
    start_ns = 1
    slots_out = 0
    buffers_read = 0
    has_spare_slots = True
    lost: dict[str, int] = {}  # noqa: RUF012
    problems: list[str] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.waiting: list[Batch] = []
        self.losses = LostRecords(BufferArena(1, 1 << 16), frozenset())

    def start(self, kinds):
        return {}

    def flush(self):
        pass

    def batches(self, may_take):
        given, self.waiting = self.waiting, []
        return given

    ending = batches


def host_markers(flag: MarkerFlag, *ids: int) -> Batch:
    records = np.zeros(len(ids), DTYPES[ActivityKind.Marker])
    records["kind"] = ActivityKind.Marker
    records["flag"] = flag
    records["id"] = ids
    records["timestamp_ns"] = 10**18
    records["name"] = 1 if flag == MarkerFlag.START else 0
    return Batch(ActivityKind.Marker, records, ("", "step"))


@pytest.fixture
def recorder() -> PlayedRecorder:
    return PlayedRecorder()


@pytest.fixture
def session(recorder) -> MonitoringSession:
    settings = MonitorSettings(kinds="Marker")
    started = MonitoringSession(settings, recorder, Uplink(lambda: None), lambda: -1)
    started.start()
    return started


def test_ranges_still_open_are_counted_when_the_session_ends(recorder, session):
    recorder.waiting = [
        host_markers(MarkerFlag.START, 1, 2, 3),
        host_markers(MarkerFlag.END, 2),
    ]
    session.tick()
    assert session.counts().drops == {}
    session.stop("stopped")
    assert session.counts().drops == {"open": 2}
    assert totals(session) == "4 records recorded = 4 in windows; 2 ranges still open"


def test_ranges_that_had_to_make_room_are_counted_at_once(recorder, session, monkeypatch):
    monkeypatch.setattr(markers, "OPEN_RECORDS", 2)
    small = MonitoringSession(session.settings, recorder, Uplink(lambda: None), lambda: -1)
    small.start()
    recorder.waiting = [host_markers(MarkerFlag.START, 1, 2, 3)]
    small.tick()
    assert small.counts().drops == {"markers": 1}
    small.stop("stopped")
    assert small.counts().drops == {"markers": 1, "open": 2}
    assert small.counts().untimed == {"Marker": 1}

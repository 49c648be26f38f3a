"""What a session counts, with a recorder that plays given batches."""

from __future__ import annotations

import numpy as np
import pytest

from msmon.agent.link.uplink import Uplink
from msmon.agent.session.answers import totals
from msmon.agent.session.session import MonitoringSession
from msmon.agent.steps.counter import StepCounter
from msmon.bus.codec import decode
from msmon.bus.messages import GapReport
from msmon.errors import CommandRefused
from msmon.ffi.arena import BufferArena
from msmon.recording.lost_records import LostRecords
from msmon.records import markers
from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind, MarkerFlag
from msmon.records.record_filter import RecordFilter
from msmon.records.statistics.window_statistics import WindowStatistics
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

    def change_kinds(self, kinds):
        return {}

    def stop(self):
        return []

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
    started = MonitoringSession(settings, recorder, Uplink(lambda: None), StepCounter())
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
    small = MonitoringSession(session.settings, recorder, Uplink(lambda: None), StepCounter())
    small.start()
    recorder.waiting = [host_markers(MarkerFlag.START, 1, 2, 3)]
    small.tick()
    assert small.counts().drops == {"markers": 1}
    small.stop("stopped")
    assert small.counts().drops == {"markers": 1, "open": 2}
    assert small.counts().untimed == {"Marker": 1}


def start_session(recorder, uplink=None, **settings) -> MonitoringSession:
    fields = {"kinds": "Marker", **settings}
    started = MonitoringSession(
        MonitorSettings(**fields), recorder, uplink or Uplink(lambda: None), StepCounter()
    )
    started.start()
    return started


def test_what_was_dropped_stays_known_when_all_is_acknowledged_at_the_end(recorder):
    uplink = Uplink(lambda: None, kept_bytes=1000)
    session = start_session(recorder, uplink, ship_records=True)
    recorder.waiting = [host_markers(MarkerFlag.START, *range(100))]
    session.tick()
    assert session.counts().drops == {"uplink": 100}
    session.stop("stopped")
    uplink.acknowledge(session.session_id, 10**6)
    assert uplink.kept_bytes == 0
    assert session.counts().drops["uplink"] == 100


def test_a_stop_during_a_pause_counts_what_was_lost_before_it_once(recorder):
    session = start_session(recorder)
    recorder.lost = {"slots": 7}
    session.pause()
    assert session.counts().drops == {"slots": 7}
    session.stop("stopped")
    assert session.counts().drops == {"slots": 7}


def test_losses_before_and_after_a_pause_add_up(recorder):
    session = start_session(recorder)
    recorder.lost = {"slots": 7}
    session.pause()
    session.resume()
    recorder.lost = {"slots": 2}
    assert session.counts().drops == {"slots": 9}


def test_a_session_whose_kinds_are_all_refused_after_a_pause_says_so(recorder):
    session = start_session(recorder)
    session.pause()
    recorder.enabled_kinds = frozenset()
    recorder.start = lambda kinds: {"Marker": "MSPTI has no room"}
    with pytest.raises(CommandRefused, match="no kind can be recorded") as refusal:
        session.resume()
    assert "Marker: MSPTI has no room" in refusal.value.next_step
    assert session.paused


@pytest.mark.parametrize(
    ("broken", "stage", "counts"),
    [
        (RecordFilter, "decode", ({"Marker": 1}, {"Marker": 1})),
        (WindowStatistics, "windows", ({"Marker": 3}, {"Marker": 3})),
        (Uplink, "uplink", ({"Marker": 3}, {"Marker": 3})),
    ],
    ids=["filtered", "measured", "sent"],
)
def test_a_batch_that_cannot_be_handled_is_counted_and_the_session_goes_on(
    recorder, monkeypatch, broken, stage, counts
):
    method = {RecordFilter: "apply", WindowStatistics: "add", Uplink: "put_records"}[broken]
    handle = getattr(broken, method)

    def fail_for_two(self, *arguments, **options):
        batch = next(item for item in arguments if isinstance(item, Batch))
        if len(batch) == 2:
            raise ZeroDivisionError("unforeseen")
        return handle(self, *arguments, **options)

    uplink = Uplink(lambda: None)
    session = start_session(recorder, uplink, ship_records=True, filter="Marker:step")
    monkeypatch.setattr(broken, method, fail_for_two)
    recorder.waiting = [host_markers(MarkerFlag.START, 1, 2), host_markers(MarkerFlag.START, 3)]
    session.tick()
    assert session.counts().drops == {stage: 2}
    assert (session.counts().received, session.counts().kept) == counts
    assert "unforeseen" in session.problem
    sent = [decode(frames).message for frames in iter(uplink.take, None)]
    (gap,) = [message.gap for message in sent if isinstance(message, GapReport)]
    assert (gap.stage, gap.records) == (stage, {"Marker": 2})


def test_an_update_of_the_filter_keeps_the_end_of_an_open_range(recorder):
    session = start_session(recorder, filter="Marker:step", kinds="Marker,Kernel")
    recorder.waiting = [host_markers(MarkerFlag.START, 1)]
    session.tick()
    session.update({"filter": "Marker:another"})
    recorder.waiting = [host_markers(MarkerFlag.START, 2), host_markers(MarkerFlag.END, 1, 2)]
    session.tick()
    session.stop("stopped")
    assert session.counts().kept == {"Marker": 2}
    assert session.counts().drops == {}


def test_full_buffers_wait_while_the_uplink_is_full_and_enough_are_free(recorder):
    uplink = Uplink(lambda: None, kept_bytes=20_000)
    session = start_session(recorder, uplink, ship_records=True)
    asked = []
    recorder.batches = lambda may_take: asked.append(may_take(2000)) or []
    session.tick()
    uplink.put_records(session.session_id, host_markers(MarkerFlag.START, *range(240)))
    session.tick()
    recorder.has_spare_slots = False
    session.tick()
    assert asked == [True, False, True]

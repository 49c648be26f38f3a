"""Numbering, bounds, resending and gaps of the uplink, without threads or sockets."""

from __future__ import annotations

import json

import numpy as np
import pytest

from msmon.agent.link.payloads import with_used_texts
from msmon.agent.link.uplink import Uplink
from msmon.bus.codec import MAX_PAYLOAD_FRAME_BYTES, decode
from msmon.bus.messages import GapReport, Records, SessionClosed, SessionOpened
from msmon.records.batch import Batch
from msmon.records.dtypes import DTYPES
from msmon.records.kinds import ActivityKind
from msmon.records.windows import Window
from msmon.sessions import Gap, MonitorSettings, SessionEnd

KERNEL_BYTES = DTYPES[ActivityKind.Kernel].itemsize


def kernels(count: int, name: int = 1) -> Batch:
    records = np.zeros(count, DTYPES[ActivityKind.Kernel])
    records["kind"] = ActivityKind.Kernel
    records["name"] = name
    return Batch(ActivityKind.Kernel, records, ("", "MatMul", "Softmax"))


def window() -> Window:
    return Window(0, 1, 2)


@pytest.fixture
def uplink() -> Uplink:
    made = Uplink(lambda: None, kept_bytes=100_000, in_flight_bytes=50_000)
    made.open("s", MonitorSettings(), 5)
    return made


def taken(uplink: Uplink) -> list:
    """Take all that may be sent now."""
    messages = []
    while (frames := uplink.take()) is not None:
        messages.append(decode(frames).message)
    return messages


def test_a_stream_is_numbered_from_one_in_the_order_it_was_put(uplink):
    uplink.put_records("s", kernels(3))
    uplink.put_window("s", window())
    uplink.put_note("s", "key", "value")
    uplink.put_gap("s", Gap("slots", 1, 2, None))
    uplink.close("s", SessionEnd(9, "stopped"))
    messages = taken(uplink)
    assert [message.TYPE for message in messages] == [
        "session-opened",
        "records",
        "window",
        "session-note",
        "gap",
        "session-closed",
    ]
    assert [message.seq for message in messages] == [1, 2, 3, 4, 5, 6]
    assert uplink.all_sent


def test_a_batch_arrives_as_it_was(uplink):
    uplink.put_records("s", kernels(3))
    uplink.take()
    envelope = decode(uplink.take())
    batch = Batch.from_frames(ActivityKind(envelope.message.kind), *envelope.payload)
    assert batch.text("name").tolist() == ["MatMul"] * 3
    assert envelope.message.count == 3


def test_no_more_is_in_flight_than_allowed(uplink):
    for _ in range(6):
        assert uplink.put_records("s", kernels(200))
    first = taken(uplink)
    assert 2 <= len(first) < 7
    uplink.acknowledge("s", first[-1].seq)
    second = taken(uplink)
    assert second[0].seq == first[-1].seq + 1


def test_one_message_larger_than_the_bound_is_sent_alone():
    uplink = Uplink(lambda: None, kept_bytes=100_000, in_flight_bytes=1000)
    uplink.open("s", MonitorSettings(), 5)
    uplink.put_records("s", kernels(500))
    assert [message.TYPE for message in taken(uplink)] == ["session-opened"]
    uplink.acknowledge("s", 1)
    assert [message.TYPE for message in taken(uplink)] == ["records"]


def test_what_is_acknowledged_is_forgotten(uplink):
    uplink.put_records("s", kernels(100))
    uplink.close("s", SessionEnd(9, "stopped"))
    last = taken(uplink)[-1]
    uplink.acknowledge("s", last.seq)
    assert uplink.kept_bytes == 0
    uplink.start_over()
    assert uplink.take() is None


def test_after_a_reconnect_the_opening_and_all_unacknowledged_come_again(uplink):
    for _ in range(3):
        uplink.put_records("s", kernels(10))
    assert [message.seq for message in taken(uplink)] == [1, 2, 3, 4]
    uplink.acknowledge("s", 3)
    uplink.put_records("s", kernels(10))
    uplink.start_over()
    assert [message.seq for message in taken(uplink)] == [1, 4, 5]
    uplink.acknowledge("s", 5)
    uplink.start_over()
    assert [message.seq for message in taken(uplink)] == [1]


def test_an_acknowledgement_may_overtake_the_resending(uplink):
    uplink.put_records("s", kernels(10))
    taken(uplink)
    uplink.start_over()
    uplink.acknowledge("s", 2)
    assert uplink.take() is None
    assert uplink.kept_bytes == 0


def test_records_beyond_the_bound_are_counted_and_reported_when_there_is_room(uplink):
    batches = 0
    while uplink.put_records("s", kernels(200)):
        batches += 1
    assert not uplink.put_records("s", kernels(100))
    assert uplink.kept_bytes <= 100_000
    assert uplink.dropped("s") == {"uplink": 300}
    messages = taken(uplink)
    while messages[-1].seq < batches + 1:
        uplink.acknowledge("s", messages[-1].seq)
        messages += taken(uplink)
    uplink.acknowledge("s", messages[-1].seq)
    assert uplink.put_records("s", kernels(10))
    gap, records = taken(uplink)
    assert isinstance(gap, GapReport)
    assert gap.gap.stage == "uplink"
    assert gap.gap.records == {"Kernel": 300}
    assert gap.gap.start_ns <= gap.gap.end_ns
    assert isinstance(records, Records)
    assert records.seq == gap.seq + 1


def test_while_it_is_full_small_batches_do_not_slip_in_between(uplink):
    while uplink.put_records("s", kernels(200)):
        pass
    assert not uplink.put_records("s", kernels(1))


def test_windows_find_room_when_records_do_not(uplink):
    while uplink.put_records("s", kernels(200)):
        pass
    assert uplink.put_window("s", window())


def test_windows_reach_all_of_their_part_after_records_were_lost(uplink):
    while uplink.put_records("s", kernels(200)):
        pass
    full = uplink.kept_bytes
    windows = 0
    while uplink.put_window("s", window()):
        windows += 1
    assert uplink.kept_bytes - full > 20_000
    assert uplink.kept_bytes <= 100_000


def test_the_records_of_a_window_that_finds_no_room_are_counted_apart(uplink):
    lost = Window(3, 100, 200, kept={"Kernel": 40, "API": 2})
    while uplink.put_window("s", window()):
        pass
    assert not uplink.put_window("s", lost)
    assert uplink.dropped("s") == {"windows": 42}
    while messages := taken(uplink):
        uplink.acknowledge("s", messages[-1].seq)
    assert uplink.put_window("s", window())
    gap, after = taken(uplink)
    assert isinstance(gap, GapReport)
    assert (gap.gap.stage, gap.gap.records) == ("windows", {"Kernel": 40, "API": 2})
    assert gap.gap.end_ns == 200
    assert after.TYPE == "window"


def taken_to_the_end(uplink: Uplink) -> list:
    """Take and acknowledge all of a session that was closed."""
    messages = []
    while not messages or not isinstance(messages[-1], SessionClosed):
        messages += taken(uplink)
        uplink.acknowledge("s", messages[-1].seq)
    return messages


@pytest.mark.parametrize(("connected", "reason"), [(False, "away"), (True, "faster")])
def test_a_gap_says_whether_the_daemon_was_away(uplink, connected, reason):
    if connected:
        uplink.start_over()
    while uplink.put_records("s", kernels(200)):
        pass
    uplink.close("s", SessionEnd(9, "stopped"))
    assert reason in taken_to_the_end(uplink)[-2].gap.reason


def so_far(uplink: Uplink) -> list:
    return [decode(frames).message for frames in iter(uplink.take_so_far, None)]


def test_of_an_open_window_only_the_newest_state_is_sent_and_only_once(uplink):
    uplink.start_over(daemon_takes_so_far=True)
    for end_ns in (2, 3):
        uplink.put_so_far("s", Window(0, 1, end_ns))
    assert so_far(uplink) == []  # the daemon doesn't know the session yet
    taken(uplink)
    (message,) = so_far(uplink)
    assert (message.TYPE, message.session_id, message.end_ns) == ("window-so-far", "s", 3)
    assert so_far(uplink) == []


def test_what_an_open_window_held_is_not_sent_after_its_end_or_on_another_connection(uplink):
    uplink.start_over(daemon_takes_so_far=True)
    taken(uplink)
    uplink.put_so_far("s", Window(0, 1, 2))
    uplink.put_window("s", Window(0, 1, 3))
    assert so_far(uplink) == []
    uplink.put_so_far("s", Window(1, 3, 4))
    uplink.disconnected()
    assert not uplink.wants_so_far
    uplink.start_over(daemon_takes_so_far=True)
    taken(uplink)
    assert uplink.wants_so_far
    assert so_far(uplink) == []
    uplink.start_over()
    assert not uplink.wants_so_far  # a daemon that doesn't know the message


def test_a_loss_not_yet_reported_comes_before_the_end(uplink):
    while uplink.put_records("s", kernels(200)):
        pass
    uplink.close("s", SessionEnd(9, "stopped"))
    assert isinstance(taken_to_the_end(uplink)[-2], GapReport)


def test_a_record_whose_name_is_longer_than_a_frame_is_sent_with_a_shorter_one():
    uplink = Uplink(lambda: None)
    uplink.open("s", MonitorSettings(), 5)
    records = np.zeros(3, DTYPES[ActivityKind.Kernel])
    records["kind"] = ActivityKind.Kernel
    records["name"] = [1, 2, 1]
    long = "算" * MAX_PAYLOAD_FRAME_BYTES
    assert uplink.put_records("s", Batch(ActivityKind.Kernel, records, ("", "MatMul", long)))
    uplink.take()
    names = []
    while (frames := uplink.take()) is not None:
        envelope = decode(frames)
        names += Batch.from_frames(ActivityKind.Kernel, *envelope.payload).text("name").tolist()
        uplink.acknowledge("s", envelope.message.seq)
    assert [name[:6] for name in names] == ["MatMul", "算" * 6, "MatMul"]
    assert names[1].endswith("…")


def test_the_groups_of_a_large_job_fit_into_a_payload_frame():
    uplink = Uplink(lambda: None)
    ranks = list(range(256))
    groups = {f"10.0.0.{number}%enp_{number}": {"global_ranks": ranks} for number in range(2_000)}
    uplink.open("s", MonitorSettings(), 1)
    uplink.put_note("s", "parallel_group_info", json.dumps(groups))
    uplink.put_note("s", "too long", "x" * (MAX_PAYLOAD_FRAME_BYTES + 1))
    uplink.put_note("s", "short", "text")
    _, long, short = (decode(frames) for frames in iter(uplink.take, None))
    assert json.loads(long.payload[0]) == groups
    assert (long.message.key, long.message.value) == ("parallel_group_info", "")
    assert (short.message.key, short.message.value, short.payload) == ("short", "text", ())


def test_sessions_have_streams_of_their_own(uplink):
    uplink.close("s", SessionEnd(9, "stopped"))
    uplink.open("t", MonitorSettings(), 6)
    uplink.put_records("t", kernels(1))
    messages = taken(uplink)
    assert [(item.session_id, item.seq) for item in messages] == [
        ("s", 1),
        ("s", 2),
        ("t", 1),
        ("t", 2),
    ]
    assert isinstance(messages[2], SessionOpened)
    uplink.acknowledge("s", 2)
    uplink.start_over()
    assert [(item.session_id, item.seq) for item in taken(uplink)] == [("t", 1), ("t", 2)]


def test_an_acknowledgement_of_an_unknown_session_is_ignored(uplink):
    uplink.acknowledge("another", 7)
    assert len(taken(uplink)) == 1


def test_only_the_texts_that_are_used_travel():
    compact = with_used_texts(kernels(2, name=2))
    assert compact.strings == ("", "Softmax")
    assert compact.text("name").tolist() == ["Softmax", "Softmax"]


def test_a_batch_that_uses_all_its_texts_is_not_copied():
    batch = kernels(2)
    batch.records["name"] = [1, 2]
    assert with_used_texts(batch) is batch


def test_a_batch_whose_texts_are_too_long_for_a_frame_goes_in_parts():
    uplink = Uplink(lambda: None)
    uplink.open("s", MonitorSettings(), 5)
    count = 1 << 17
    texts = ("", *(f"{number:0150d}" for number in range(count)))
    records = np.zeros(count, DTYPES[ActivityKind.Kernel])
    records["kind"] = ActivityKind.Kernel
    records["name"] = np.arange(1, count + 1)
    assert uplink.put_records("s", Batch(ActivityKind.Kernel, records, texts))
    uplink.take()
    names = []
    while (frames := uplink.take()) is not None:
        envelope = decode(frames)
        part = Batch.from_frames(ActivityKind.Kernel, *envelope.payload)
        assert len(part) == envelope.message.count
        names += part.text("name").tolist()
        uplink.acknowledge("s", envelope.message.seq)
    assert names == list(texts[1:])

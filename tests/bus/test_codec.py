"""Messages survive the wire; everything else is refused with the field named."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from typing import Annotated, Any, get_args, get_origin

import msgpack
import numpy as np
import pytest
from fixtures.rows import status_row
from hypothesis import given
from hypothesis import strategies as st

from msmon.bounds import Bound
from msmon.bus import codec, messages
from msmon.bus.codec import MAX_PAYLOAD_FRAME_BYTES, decode, encode, message_id_of
from msmon.bus.messages import (
    Acknowledged,
    GapReport,
    Hello,
    Message,
    Records,
    Refused,
    Reply,
    SessionClosed,
    SessionNote,
    Status,
    StatusRequest,
)
from msmon.bus.rows import MissingRow
from msmon.bus.validation import hints_of
from msmon.bus.words import Outcome
from msmon.errors import MsmonError, ProtocolMismatch, UsageError
from msmon.sessions import Counts, Gap, ProcessInfo, SessionEnd

MANY = {str(number): number for number in range(65)}

text = st.text("ab.\0é", max_size=5)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | text | st.binary(max_size=5)
)
plain = scalars | st.lists(scalars, max_size=3) | st.dictionaries(text, scalars, max_size=3)


def header(**fields) -> list[bytes]:
    return [msgpack.packb({"v": [1, 0], "id": "7", **fields})]


@pytest.mark.parametrize(
    "message",
    [
        Hello("1.2", "agent", ProcessInfo("node", 3, 4, job_id="123_4")),
        Hello("1.2", "client"),
        Status("idle", counts=Counts({"Kernel": 3}, drops={"decode": None, "uplink": 2})),
        GapReport("s", 9, Gap("slots", 1, 2, None)),
        SessionClosed("s", 9, SessionEnd(5, "lost")),
        Reply(
            Outcome.OK, rows=[status_row(files=["/a"], drops={"uplink": None}), MissingRow(rank=9)]
        ),
    ],
)
def test_a_message_arrives_as_it_was_sent(message):
    envelope = decode(encode(message, "7", [b"one", b"two"]))
    assert envelope == codec.Envelope(message, "7", (b"one", b"two"))


def test_every_message_type_is_known_by_its_name():
    declared = {
        kind.TYPE
        for kind in vars(messages).values()
        if isinstance(kind, type) and issubclass(kind, messages.Message) and kind.TYPE
    }
    assert set(codec.MESSAGE_TYPES) == declared
    assert not any(
        field.name in ("v", "type", "id")
        for kind in codec.MESSAGE_TYPES.values()
        for field in dataclasses.fields(kind)
    )


def test_numpy_numbers_and_bytes_that_are_no_utf8_can_be_sent():
    status = Status("idle", counts=Counts({"Kernel": np.int64(3)}), cpu_s=np.float64(0.5))
    assert decode(encode(status)).message.counts.received == {"Kernel": 3}
    hello = Hello("1", "agent", ProcessInfo("n", 1, 2, command="a\udcff"))
    assert decode(encode(hello)).message == hello


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"type": "hello", "version": "1", "role": "agent", "colour": 1}, "'colour'"),
        ({"type": "hello", "version": "1"}, "'role' is missing"),
        ({"type": "hello", "version": 1, "role": "agent"}, "'version' must be a text"),
        (
            {
                "type": "hello",
                "version": "1",
                "role": "a",
                "process": {"host": "n", "pid": True, "start_time": 1},
            },
            "'process.pid'",
        ),
        (
            {
                "type": "hello",
                "version": "1",
                "role": "a",
                "process": {"host": "n", "pid": 1, "start_time": 1, "cwd": ""},
            },
            "'process.cwd'",
        ),
        ({"type": "status-request", "selection": {"pids": [1, "2"]}}, "'selection.pids[1]'"),
        ({"type": "status", "state": "idle", "cpu_s": float("nan")}, "'cpu_s'"),
        ({"type": "status", "state": "idle", "counts": {"kept": {"Kernel": 1.5}}}, "Kernel"),
        ({"type": "monitor-request", "action": "start", "fields": []}, "'fields' must be a map"),
        ({"type": "hello", "version": "1" * 65, "role": "a"}, "'version' is longer than 64"),
        ({"type": "status-request", "selection": {"pids": [1] * 10_001}}, "more than 10000 items"),
        (
            {"type": "status", "state": "idle", "counts": {"kept": dict.fromkeys(MANY, 1)}},
            "entries",
        ),
        ({"type": "monitor-request", "action": "start", "fields": {"a": {}}}, "'fields.a' must be"),
        ({"type": "teleport"}, "'teleport'"),
        ({"type": ["hello"]}, "unknown message type"),
    ],
)
def test_a_wrong_field_is_named(fields, named):
    with pytest.raises(UsageError, match="message") as caught:
        decode(header(**fields))
    assert named in caught.value.message


def test_a_whole_number_serves_where_a_fraction_is_expected():
    assert decode(header(type="status", state="idle", cpu_s=2)).message.cpu_s == 2.0


@pytest.mark.parametrize(
    ("version", "upgrade"), [([2, 0], "this msmon"), ([0, 9], "the daemon"), ([7, 1], "this msmon")]
)
def test_another_major_version_says_which_side_to_upgrade(version, upgrade):
    frames = [msgpack.packb({"v": version, "type": "hello", "anything": 1})]
    with pytest.raises(ProtocolMismatch) as caught:
        decode(frames, sender="the daemon", receiver="this msmon")
    assert caught.value.next_step.endswith(upgrade)
    assert f"{version[0]}.{version[1]}" in caught.value.message


def test_a_field_of_a_newer_minor_version_is_refused_with_both_versions():
    frames = [msgpack.packb({"v": [1, 9], "type": "ack", "session_id": "s", "seq": 1, "new": 1})]
    with pytest.raises(UsageError, match="'new'") as caught:
        decode(frames)
    assert "1.9" in caught.value.next_step
    assert f"1.{messages.PROTOCOL_MINOR}" in caught.value.next_step


def test_the_protocol_version_is_this_one():
    assert msgpack.unpackb(encode(StatusRequest())[0])["v"] == [1, 2]


@pytest.mark.parametrize(
    "raw",
    [
        [],
        [b""],
        [b"GET / HTTP/1.1\r\n\r\n"],
        [b"\xc1"],
        [b"\xdf\xff\xff\xff\xff"],
        [b"\x91" * 60_000],
        [msgpack.packb({1: 2})],
        [msgpack.packb({"v": [1, 0], "type": "status", "id": 5, "state": "idle"})],
        [msgpack.packb({"v": [1, 0], "type": "status", "id": "x" * 65, "state": "idle"})],
        [msgpack.packb({"v": "1.0", "type": "status", "state": "idle"})],
        [msgpack.packb({"v": [1, 0], "type": "status", "stuck_in": "x" * 70_000, "state": "x"})],
        [msgpack.packb({"v": [1, 0], "type": "status", "state": b"idle"})],
        [*encode(StatusRequest()), *[b""] * 9],
        [*encode(StatusRequest()), bytes(MAX_PAYLOAD_FRAME_BYTES + 1)],
    ],
)
def test_rubbish_and_excess_are_refused(raw):
    with pytest.raises(UsageError):
        decode(raw)


def unbounded(hint, place: str) -> list[str]:
    """Return the places in a type hint where a text, list or map has no bound."""
    bounded = get_origin(hint) is Annotated and any(
        isinstance(note, Bound) for note in get_args(hint)[1:]
    )
    inner = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if isinstance(inner, type) and issubclass(inner, enum.Enum):
        return []
    if dataclasses.is_dataclass(inner):
        return [
            found
            for name, item in hints_of(inner).items()
            for found in unbounded(item, f"{place}.{name}")
        ]
    grows = inner in (str, Any) or get_origin(inner) in (list, dict)
    parts = [found for part in get_args(inner) for found in unbounded(part, place)]
    return [*([place] if grows and not bounded else []), *parts]


def test_every_text_list_and_map_of_every_message_has_a_bound():
    assert unbounded(dict[str, list[str]], "x") == ["x", "x", "x", "x"]
    for name, kind in codec.MESSAGE_TYPES.items():
        assert unbounded(kind, name) == []


LARGEST = 2**53


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "records", "session_id": "s", "seq": 2, "kind": 1, "count": LARGEST + 1},
        {"type": "records", "session_id": "s", "seq": 2, "kind": 1, "count": -1},
        {"type": "records", "session_id": "s", "seq": LARGEST + 1, "kind": 1, "count": 1},
        {"type": "status", "state": "idle", "step": 2**62},
        {"type": "answer", "ok": True, "step": 2**62},
        {"type": "status", "state": "idle", "trace": {"start_step": 2**62}},
        {"type": "status", "state": "idle", "counts": {"kept": {"Kernel": 2**62}}},
        {"type": "status", "state": "idle", "counts": {"drops": {"sink": 2**62}}},
        {"type": "status-request", "selection": {"ranks": [2**62]}},
        {"type": "command", "action": "a", "fields": {"start_step": 2**62}},
    ],
)
def test_numbers_beyond_what_can_be_summed_are_refused(fields):
    with pytest.raises(UsageError, match="must be a whole number from"):
        decode(header(**fields))


def test_counts_and_steps_up_to_the_largest_and_times_of_today_are_taken():
    end = SessionEnd(2 * 10**18, "stopped", Counts({"Kernel": LARGEST}))
    for message in (SessionClosed("s", 3, end), Status("idle", step=LARGEST + 1)):
        assert decode(encode(message)).message == message


def test_prose_that_is_too_long_is_cut_on_both_sides():
    sent = decode(encode(Refused("x" * 5000))).message.reason
    assert (len(sent), sent[-1]) == (4096, "…")
    assert len(decode(header(type="refused", reason="x" * 60_000)).message.reason) == 4096


def test_maps_can_not_be_nested_where_one_value_is_meant():
    empty_maps = [{} for _ in range(20_000)]
    with pytest.raises(UsageError, match="one text, number or truth value"):
        decode(header(type="command", action="a", fields={"a": empty_maps}))


def test_a_large_answer_may_be_sent_and_nothing_else():
    rows = [MissingRow(text="x" * 1000)] * 1000
    assert len(decode(encode(Reply("ok", rows=rows))).message.rows) == 1000
    with pytest.raises(UsageError, match="too large"):
        encode(SessionNote("s", 1, "k", "x" * 100_000))


def test_an_answer_that_is_too_large_says_how_many_rows_it_lacks():
    rows = [status_row(problem="x" * 4096, pid=pid) for pid in range(5000)]
    reply = decode(encode(Reply("ok", "one is away", rows=rows))).message
    lacking = 5000 - len(reply.rows)
    assert reply.rows == rows[: len(reply.rows)]
    assert len(reply.rows) > 2000
    assert reply.text.startswith(f"one is away; {lacking} more do not fit")


def test_a_row_that_is_wrong_is_left_out_and_the_others_are_told():
    stages = {f"stage {number}": 1 for number in range(17)}
    rows = [status_row(pid=1), status_row(pid=2, drops=stages), status_row(pid=3)]
    reply = decode(encode(Reply("ok", "one is away", rows=rows))).message
    assert [row.pid for row in reply.rows] == [1, 3]
    assert reply.text == "one is away; unreadable rows of the answer that are left out: 1"


def test_the_id_of_a_broken_message_is_found():
    assert message_id_of(header(type="nonsense")) == "7"
    assert message_id_of([b"\xc1"]) == ""
    assert message_id_of([]) == ""


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_any_bytes_are_decoded_or_refused(frames):
    with pytest.raises(MsmonError):
        decode(frames)


@given(st.dictionaries(st.sampled_from(["v", "type", "id", "seq", "state", "fields"]), plain))
def test_any_map_is_decoded_or_refused(values):
    decoded = None
    with contextlib.suppress(MsmonError):
        decoded = decode([msgpack.packb({"v": [1, 0], "type": "ack", **values})])
    assert decoded is None or isinstance(decoded.message, Message)


def test_a_batch_travels_with_its_frames():
    message = Records("s", 2, 2, 1)
    assert decode(encode(message, payload=[b"r", b"t"])).payload == (b"r", b"t")
    assert decode(encode(Acknowledged("s", 2))).payload == ()

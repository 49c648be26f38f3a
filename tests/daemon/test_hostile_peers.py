"""Peers that flood, stall or send rubbish, below ZeroMQ and above, hurt only themselves."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
import zmq

from msmon.bus import sockets
from msmon.bus.codec import encode
from msmon.bus.messages import (
    Hello,
    MonitorRequest,
    Records,
    Status,
    StatusRequest,
    VersionRequest,
    WindowReport,
    WindowsRequest,
)
from msmon.sessions import ProcessInfo

FLOOD_S = 1.5
MEMORY_BOUND_BYTES = 200 << 20
SEED = 20_240_229


@pytest.fixture
def dealer(daemon) -> Iterator[zmq.Socket]:
    """A connected peer without manners."""
    daemon.start()
    context = zmq.Context()
    dealer, watch = sockets.connect(context, daemon.endpoint())
    while not any(event.state == "connected" for event in watch.events()):
        watch.socket.poll(1000)
    watch.close()
    yield dealer
    dealer.close()
    context.term()


def slowest_answer_s(daemon, end_s: float) -> float:
    """Ask for the status again and again until ``end_s``; return the longest wait."""
    slowest_s = 0.0
    while time.monotonic() < end_s:
        start_s = time.monotonic()
        assert daemon.row(11).state == "idle"
        slowest_s = max(slowest_s, time.monotonic() - start_s)
    return slowest_s


def resident_bytes(daemon) -> int:
    return psutil.Process(daemon.process.pid).memory_info().rss


def random_frames(random_source: random.Random) -> list[bytes]:
    """Return valid messages with flipped bytes, missing parts and extra frames."""
    message = random_source.choice(
        [
            Hello("1", "agent", ProcessInfo("node", 99, 1)),
            Status("idle", settings={"filter": "Kernel:a"}),
            Records("s", 2, 2, 1),
            MonitorRequest("start", {"filter": "Kernel:a"}),
            StatusRequest(),
        ]
    )
    frames = [bytearray(frame) for frame in encode(message, "1", [b"x" * 50])]
    for _ in range(random_source.randrange(1, 6)):
        frame = random_source.choice(frames)
        frame[random_source.randrange(len(frame))] = random_source.randrange(256)
    if random_source.random() < 0.3:
        del frames[0][random_source.randrange(len(frames[0])) :]
    return [bytes(frame) for frame in frames]


def test_a_flood_of_broken_messages(daemon, dealer, agent):
    honest = agent(11)
    before_bytes = resident_bytes(daemon)
    random_source = random.Random(SEED)
    end_s = time.monotonic() + FLOOD_S
    while time.monotonic() < end_s:
        try:
            dealer.send_multipart(random_frames(random_source), zmq.NOBLOCK)
        except zmq.Again:
            time.sleep(0.001)
        while dealer.poll(0):
            dealer.recv_multipart()
    assert slowest_answer_s(daemon, time.monotonic() + 0.5) < 5.0
    assert honest.welcomes == 1
    assert resident_bytes(daemon) - before_bytes < MEMORY_BOUND_BYTES
    assert daemon.process.poll() is None


def test_a_peer_that_never_takes_its_answers(daemon, dealer, agent):
    honest = agent(11)
    before_bytes = resident_bytes(daemon)
    question = encode(StatusRequest(), "1")
    for _ in range(20_000):
        try:
            dealer.send_multipart(question, zmq.NOBLOCK)
        except zmq.Again:
            time.sleep(0.0002)
    assert slowest_answer_s(daemon, time.monotonic() + 0.5) < 5.0
    assert honest.welcomes == 1
    assert resident_bytes(daemon) - before_bytes < MEMORY_BOUND_BYTES


def test_a_peer_that_never_takes_the_windows_it_asks_for(daemon, dealer, agent, wait_for):
    honest = agent(11)
    honest.open_session("5" * 32)
    for seq in range(2, 34):
        honest.send(WindowReport("5" * 32, seq, seq, 1, 2), (b"", bytes(1 << 20), b""))
    kept = "recent_windows"
    wait_for(lambda: getattr(daemon.ask(VersionRequest()).daemon, kept) == 32, "all are kept")
    before_bytes = resident_bytes(daemon)
    question = encode(WindowsRequest(most_bytes=1 << 30), "1")
    for _ in range(200):
        dealer.send_multipart(question)
    assert slowest_answer_s(daemon, time.monotonic() + 1.0) < 5.0
    assert resident_bytes(daemon) - before_bytes < MEMORY_BOUND_BYTES


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: node\r\n\r\n",
        b"\xff" + bytes(8) + b"\x7f",
        b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\x00" + bytes(31),
        b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\x00" + bytes(31) + b"\x06" * 500,
        random.Random(5).randbytes(2000),
    ],
    ids=["nothing", "http", "greeting", "curve", "garbled hello", "noise"],
)
def test_connections_that_are_no_zeromq(daemon, agent, said):
    daemon.start()
    honest = agent(11)
    strangers = [socket.socket(socket.AF_UNIX) for _ in range(20)]
    for stranger in strangers:
        stranger.connect(str(daemon.runtime / "daemon.sock"))
        stranger.sendall(said)
    assert slowest_answer_s(daemon, time.monotonic() + 0.2) < 5.0
    for stranger in strangers:
        stranger.close()
    assert honest.welcomes == 1
    assert daemon.process.poll() is None


UNREAD = """
import sys, time, zmq
from msmon.bus import sockets
from msmon.bus.codec import encode
from msmon.bus.endpoints import local_endpoint
from msmon.bus.messages import VersionRequest
import os
sockets._PING_MS = 50
dealer, watch = sockets.connect(zmq.Context(), local_endpoint(os.environ))
for _ in range(300):
    dealer.send_multipart(encode(VersionRequest(), "1"))
print("sent", flush=True)
sys.stdin.read()
time.sleep(0.3)
"""


def test_answers_that_nobody_reads_do_not_abort_the_process_when_the_daemon_dies(daemon):
    daemon.start()
    peer = subprocess.Popen(
        [sys.executable, "-c", UNREAD],
        env=daemon.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert peer.stdout.readline() == b"sent\n"
    daemon.row(0)  # served after what the peer has asked
    daemon.kill()
    peer.communicate()
    assert peer.returncode == 0

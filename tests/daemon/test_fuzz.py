"""Random and hostile bytes against a real daemon, for a limited time.

``MSMON_FUZZ_S`` sets how long; ``MSMON_FUZZ_SEED`` repeats a run. Meanwhile an honest agent stays
registered, and an honest question is answered within a second.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgpack
import psutil
import zmq

from msmon.bus import sockets
from msmon.bus.codec import MESSAGE_TYPES, encode
from msmon.bus.messages import Hello, MonitorRequest, Records, Status, StatusRequest
from msmon.errors import BusError
from msmon.sessions import ProcessInfo

FUZZ_S = float(os.environ.get("MSMON_FUZZ_S", "10"))
SEED = int(os.environ.get("MSMON_FUZZ_SEED", str(time.time_ns())))
ANSWER_LIMIT_S = 1.0
MEMORY_LIMIT_BYTES = 150 << 20
WARNINGS_LIMIT = 20 + 2 * FUZZ_S

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE".ljust(23, b"\0") + bytes(32)
VALID = [
    Hello("1", "agent", ProcessInfo("node", 99, 1)),
    Status("idle", settings={"filter": "Kernel:a"}),
    Records("s", 2, 2, 1),
    MonitorRequest("stop"),
    StatusRequest(),
]


def some_value(source: random.Random, depth: int = 0):
    """Return any value that msgpack can carry."""
    makers: list[Callable[[], object]] = [
        lambda: None,
        lambda: source.random() < 0.5,
        lambda: source.randrange(-(2**63), 2**63),
        lambda: source.choice([0.0, float("inf"), float("nan"), -1e308]),
        lambda: "x" * source.randrange(200),
        lambda: source.randbytes(source.randrange(200)),
    ]
    if depth < 15:
        makers += [
            lambda: [some_value(source, depth + 1) for _ in range(source.randrange(3))],
            lambda: {"k": some_value(source, depth + 1)},
        ]
    return source.choice(makers)()


def damaged(source: random.Random, frame: bytes) -> bytes:
    changed = bytearray(frame)
    for _ in range(source.randrange(1, 6)):
        changed[source.randrange(len(changed))] = source.randrange(256)
    return bytes(changed[: source.randrange(1, len(changed) + 1)])


def some_message(source: random.Random) -> list[bytes]:
    """Return frames that are valid, nearly valid, well-formed nonsense, or noise."""
    frames = encode(source.choice(VALID), "1", [b"x" * source.randrange(100)])
    kind = source.randrange(4)
    if kind == 1:
        frames = [damaged(source, frame) if frame else frame for frame in frames]
    elif kind == 2:
        header = {"v": [1, 0], "type": source.choice([*MESSAGE_TYPES, "x"])}
        for name in source.sample(["seq", "state", "fields", "kind", "process", "selection"], 3):
            header[name] = some_value(source)
        frames = [msgpack.packb(header)]
    elif kind == 3:
        frames = [source.randbytes(source.randrange(3000)) for _ in range(source.randrange(1, 12))]
    return frames


def speak_zeromq(daemon, source: random.Random, end_s: float) -> int:
    """Send messages over authenticated connections; some are left, some never read."""
    context, sent = zmq.Context(), 0
    while time.monotonic() < end_s:
        dealer, watch = sockets.connect(context, daemon.endpoint())
        reads = source.random() < 0.7
        for _ in range(source.randrange(1, 1500)):
            with contextlib.suppress(zmq.Again):
                dealer.send_multipart(some_message(source), zmq.NOBLOCK)
                sent += 1
            while reads and dealer.poll(0):
                dealer.recv_multipart()
            if time.monotonic() > end_s:
                break
            time.sleep(0.0005)
        watch.close()
        dealer.close()
    context.term()
    return sent


def speak_bytes(daemon, source: random.Random, end_s: float) -> int:
    """Send what is no ZeroMQ, or begins as it and then is not; leave or linger."""
    lingering: list[socket.socket] = []
    made = 0
    while time.monotonic() < end_s:
        stranger = socket.socket(socket.AF_UNIX)
        stranger.settimeout(0.2)
        with contextlib.suppress(OSError):
            stranger.connect(str(daemon.runtime / "daemon.sock"))
            opening = source.choice([b"", b"GET / HTTP/1.1\r\n\r\n", GREETING, GREETING[:11]])
            stranger.sendall(opening + source.randbytes(source.randrange(3000)))
            length = struct.pack(">Q", source.choice([0, 2**31, 2**63, 2**64 - 1]))
            stranger.sendall(source.choice([b"", b"\x06", b"\x02" + length]))
        lingering.append(stranger)
        made += 1
        if len(lingering) > 50:
            lingering.pop(source.randrange(50)).close()
        time.sleep(0.002)
    for stranger in lingering:
        stranger.close()
    return made


def ask_honestly(daemon, ended: threading.Event) -> list[float]:
    """Ask again and again; return how long each answer took."""
    waits_s = []
    while not ended.is_set():
        start_s = time.monotonic()
        assert daemon.row(11).state == "idle"
        waits_s.append(time.monotonic() - start_s)
        time.sleep(0.05)
    return waits_s


def test_a_daemon_withstands_hostile_peers(daemon, agent, wait_for):
    print("MSMON_FUZZ_SEED", SEED)
    source = random.Random(SEED)
    daemon.start()
    honest = agent(11)
    process = psutil.Process(daemon.process.pid)
    before_bytes = process.memory_info().rss
    end_s, ended = time.monotonic() + FUZZ_S, threading.Event()
    with ThreadPoolExecutor() as pool:
        asking = pool.submit(ask_honestly, daemon, ended)
        speakers = [speak_zeromq, speak_zeromq, speak_bytes]
        hostile = [
            pool.submit(speaker, daemon, random.Random(source.random()), end_s)
            for speaker in speakers
        ]
        try:
            counts = [speaking.result() for speaking in hostile]
        finally:
            ended.set()
        waits_s = asking.result()
    print("sent", counts, "answers", len(waits_s), "slowest", max(waits_s))
    assert max(waits_s) < ANSWER_LIMIT_S
    assert honest.welcomes == 1
    assert daemon.process.poll() is None
    assert process.memory_info().rss - before_bytes < MEMORY_LIMIT_BYTES
    assert daemon.log.read_text().count("WARNING") < WARNINGS_LIMIT
    wait_for(lambda: listed(daemon), "the daemon serves on")


def listed(daemon) -> bool:
    with contextlib.suppress(BusError):
        return daemon.row(11) is not None
    return False

"""Connections that do harm are closed; the others stay."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import psutil
import pytest
import zmq
from ports import free_port

from msmon.bus import sockets
from msmon.bus.codec import decode, encode
from msmon.bus.greeting import offered_mechanism
from msmon.bus.keys import KeyPair, key_file_text, write_new
from msmon.bus.messages import Hello, StatusRequest
from msmon.daemon.access.shares import LIMITS, Resource
from msmon.daemon.connection import CREDIT, CREDIT_PER_S, PRICES, Connection, charged_s
from msmon.daemon.connections import GROWTH_LIMIT_BYTES
from msmon.sessions import ProcessInfo

PART_BYTES = 1 << 20
PARTS = 4096


def greet_as_dealer(connection: socket.socket) -> None:
    """Do the ZMTP 3.1 handshake of mechanism NULL (RFC 23) by hand."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL".ljust(23, b"\0") + bytes(32)
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
    connection.sendall(greeting)
    connection.recv(64, socket.MSG_WAITALL)
    connection.sendall(bytes([0x04, len(ready)]) + ready)
    _, length = connection.recv(2, socket.MSG_WAITALL)
    connection.recv(length, socket.MSG_WAITALL)


def send_until_cut_off(connection: socket.socket, daemon: psutil.Process) -> int:
    """Send part after part of one message; return the most memory that the daemon used."""
    part = b"\x03" + struct.pack(">Q", PART_BYTES) + bytes(PART_BYTES)  # 3: long, more follows
    most_bytes = 0
    try:
        for _ in range(PARTS):
            connection.sendall(part)
            most_bytes = max(most_bytes, daemon.memory_info().rss)
    except (BrokenPipeError, ConnectionResetError):
        return most_bytes
    raise AssertionError(f"{PARTS} parts were taken")


def test_credit_is_spent_at_once_and_grows_again():
    connection = Connection(0, None, 0.0)
    price = PRICES[StatusRequest]
    times = int(CREDIT / price)
    assert all(connection.spend(price, 0.0) for _ in range(times))
    assert not connection.spend(price, 0.0)
    assert connection.spend(price, 1.0)
    assert connection.credit <= CREDIT_PER_S


def test_a_message_costs_its_processor_time():
    assert charged_s(0.003, 200) == 0.003


def test_a_message_that_costs_this_thread_nothing_is_charged_all_the_same():
    messages_per_s, bytes_per_s = 50_000, 2_000_000_000
    regained_s = LIMITS[Resource.LOOP_S].refill_per_s
    assert messages_per_s * charged_s(0.0, 0) > regained_s
    assert 1000 * charged_s(0.0, bytes_per_s // 1000) > regained_s


class Peer:
    """A connection whose end is noticed."""

    def __init__(self, context: zmq.Context, endpoint) -> None:
        self.socket, self._watch = sockets.connect(context, endpoint)
        while not any(event.state == "connected" for event in self._watch.events()):
            self._watch.socket.poll(1000)

    def ended(self) -> bool:
        return any(event.state == "disconnected" for event in self._watch.events())

    def close(self) -> None:
        if not self.socket.closed:
            self._watch.close()
            self.socket.close()


@pytest.fixture
def peers(daemon) -> Iterator[list[Peer]]:
    """Two connections to a running daemon."""
    daemon.start()
    context = zmq.Context()
    made = [Peer(context, daemon.endpoint()) for _ in range(2)]
    yield made
    for peer in made:
        peer.close()
    context.term()


def test_who_asks_too_much_is_hung_up_on_and_nobody_else(daemon, peers, agent, wait_for):
    honest = agent(11)
    greedy, quiet = peers
    quiet.socket.send_multipart(encode(StatusRequest(), "1"))
    for _ in range(int(CREDIT / PRICES[StatusRequest]) + 100):
        greedy.socket.send_multipart(encode(StatusRequest(), "1"))
    wait_for(greedy.ended, "the greedy one is cut off")
    assert decode(quiet.socket.recv_multipart()).message.outcome
    assert not quiet.ended()
    assert honest.welcomes == 1
    assert daemon.log.read_text().count("sends too much") == 1


@pytest.fixture
def remote(daemon) -> Iterator[Peer]:
    """An agent with a key, connected over TCP. It has said hello as process 5 and says no more."""
    pair = KeyPair.generate()
    clients = daemon.directory / "keys" / "clients"
    clients.mkdir(mode=0o700, parents=True)
    clients.parent.chmod(0o700)
    values = {"public-key": pair.public.decode(), "role": "agent"}
    write_new(clients / "node7.key", key_file_text(values), 0o644)
    port = free_port()
    daemon.start("--listen", f"127.0.0.1:{port}")
    local = daemon.endpoint()
    context = zmq.Context()
    url = f"tcp://127.0.0.1:{port}"
    peer = Peer(context, type(local)(url, local.server_public_key, pair))
    hello = Hello("0", "agent", ProcessInfo("far", 5, 1))
    peer.socket.send_multipart(encode(hello, "1"))
    assert peer.socket.poll(5000)
    yield peer
    peer.close()
    context.term()


def test_a_revoked_key_loses_its_open_connections(daemon, remote, wait_for):
    (daemon.directory / "keys" / "clients" / "node7.key").unlink()
    wait_for(remote.ended, "the connection is closed, though the peer keeps silent")
    refused = "is not allowed"
    wait_for(lambda: refused in daemon.log.read_text(), "its return is refused by name")


def test_a_silent_process_of_another_machine_is_there_while_its_connection_is(
    daemon, remote, in_state
):
    in_state(5, "silent")
    remote.close()
    in_state(5, "lost")


def test_a_message_that_never_ends_does_not_fill_the_memory(daemon, agent, wait_for):
    daemon.start("--insecure")
    honest = agent(11)
    process = psutil.Process(daemon.process.pid)
    with socket.socket(socket.AF_UNIX) as endless:
        endless.connect(str(daemon.runtime / "daemon.sock"))
        greet_as_dealer(endless)
        most_bytes = send_until_cut_off(endless, process)
    assert most_bytes < 4 * GROWTH_LIMIT_BYTES
    wait_for(lambda: process.memory_info().rss < GROWTH_LIMIT_BYTES, "the memory is given back")
    assert "no whole message while memory grew" in daemon.log.read_text()
    assert honest.welcomes == 1
    assert daemon.row(11).state == "idle"


def refused(daemon) -> int:
    return daemon.ask(StatusRequest()).daemon.refused_messages


def test_who_leaves_before_the_handshake_is_counted_without_a_warning(daemon, wait_for):
    daemon.start()
    path = str(daemon.runtime / "daemon.sock")
    with socket.socket(socket.AF_UNIX) as asking:  # as msmon doctor asks who listens
        asking.connect(path)
    assert offered_mechanism(f"ipc://{path}") == "CURVE"
    wait_for(lambda: refused(daemon) == 2, "both are counted")
    assert "WARNING" not in daemon.log.read_text()


def test_who_breaks_the_rules_of_the_handshake_is_warned_of(daemon, wait_for):
    daemon.start()
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(daemon.runtime / "daemon.sock"))
        stranger.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE".ljust(23, b"\0") + bytes(32))
        stranger.sendall(bytes([0x04, 0x06]) + b"\x05READY")
        wait_for(lambda: "broke the rules" in daemon.log.read_text(), "it is warned of")

"""A process of an output holds up its thread for a bounded time, whatever it sends."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest
from fixtures.flooding_sink import FloodingSink

from msmon.daemon.outputs.child_answers import MAX_BYTES, Channel
from msmon.daemon.outputs.delivery import Forgetting
from msmon.daemon.outputs.hosts import HostEnded
from msmon.daemon.outputs.process import ProcessHost


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    """The daemon's end and the other one."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    with theirs:
        yield channel, theirs
    channel.close()


def soon_s(seconds: float = 10.0) -> float:
    return time.monotonic() + seconds


@pytest.mark.parametrize("size_bytes", [0, 5, 100_000, MAX_BYTES])
def test_messages_pass_in_both_directions(ends, size_bytes):
    channel, theirs = ends
    message = bytes(size_bytes)
    connection = Connection(theirs.detach())

    def echo() -> None:
        connection.send_bytes(connection.recv_bytes())

    thread = threading.Thread(target=echo)
    thread.start()
    channel.send(message, soon_s())
    assert channel.receive(soon_s()) == message
    thread.join()
    connection.close()


def test_a_message_that_stops_in_the_middle_is_given_up(ends):
    channel, theirs = ends
    theirs.send(struct.pack("!i", 100) + b"x")
    with pytest.raises(TimeoutError):
        channel.receive(soon_s(0.05))


def test_a_process_that_does_not_read_is_given_up(ends):
    channel, _ = ends
    with pytest.raises(TimeoutError):
        channel.send(bytes(MAX_BYTES), soon_s(0.05))


@pytest.mark.parametrize("size_bytes", [-1, MAX_BYTES + 1])
def test_an_impossible_length_is_refused(ends, size_bytes):
    channel, theirs = ends
    theirs.send(struct.pack("!i", size_bytes))
    with pytest.raises(ValueError, match="bytes"):
        channel.receive(soon_s())


def test_the_end_of_the_process_is_noticed(ends):
    channel, theirs = ends
    theirs.close()
    with pytest.raises(EOFError):
        channel.receive(soon_s())


def test_a_process_that_talks_for_ever_without_an_answer_is_ended():
    host = ProcessHost(FloodingSink, {}, call_limit_s=0.5)
    with pytest.raises(HostEnded, match="did not answer"):
        host.ask(Forgetting("s"))
    assert not host.running

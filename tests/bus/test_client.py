"""Every way in which a connection can fail has its own message, in time."""

from __future__ import annotations

import dataclasses
import signal
import socket
import threading
import time

import pytest
from ports import free_port

from msmon.bus.client import Client
from msmon.bus.endpoints import Endpoint, local_endpoint
from msmon.bus.keys import KeyPair
from msmon.bus.messages import StatusRequest
from msmon.errors import BusError, DaemonUnreachable, HandshakeRefused


def failure(endpoint: Endpoint, timeout_s: float = 3.0) -> BusError:
    """Return the error of connecting; it must come within the time-out."""
    start_s = time.monotonic()
    with pytest.raises(BusError) as caught, Client(endpoint, timeout_s) as client:
        client.request(StatusRequest())
    assert time.monotonic() - start_s < timeout_s + 1.0
    return caught.value


def test_no_socket_names_the_paths_tried(daemon):
    with pytest.raises(DaemonUnreachable, match="no socket") as caught:
        daemon.endpoint()
    assert str(daemon.runtime / "daemon.sock") in caught.value.message


def test_a_socket_file_left_by_a_killed_daemon(daemon):
    daemon.start()
    daemon.kill()
    error = failure(daemon.endpoint())
    assert isinstance(error, DaemonUnreachable)
    assert "no daemon listens" in error.message


def test_a_stopped_daemon(daemon):
    daemon.start()
    endpoint = daemon.endpoint()
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        error = failure(endpoint, timeout_s=0.5)
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    assert isinstance(error, HandshakeRefused)
    assert "does not complete the handshake" in error.message


def test_a_wrong_server_key(daemon):
    daemon.start()
    wrong = dataclasses.replace(daemon.endpoint(), server_public_key=KeyPair.generate().public)
    error = failure(wrong)
    assert isinstance(error, HandshakeRefused)
    assert "is not its key" in error.message


def test_insecure_on_the_clients_side_only(daemon):
    daemon.start()
    error = failure(local_endpoint(daemon.environ, insecure=True))
    assert isinstance(error, HandshakeRefused)
    assert "only takes secured connections" in error.message


def test_insecure_on_the_daemons_side_only(daemon):
    daemon.start("--insecure")
    with pytest.raises(BusError, match=r"public key .* is missing") as caught:
        local_endpoint(daemon.environ)
    assert "--insecure" in caught.value.next_step
    pair = KeyPair.generate()
    error = failure(Endpoint(f"ipc://{daemon.runtime / 'daemon.sock'}", pair.public, pair))
    assert isinstance(error, HandshakeRefused)
    assert "runs with --insecure" in error.message


def test_insecure_on_both_sides_works(daemon):
    daemon.start("--insecure")
    with Client(local_endpoint(daemon.environ, insecure=True)) as client:
        assert client.request(StatusRequest()).daemon.insecure is True
    jobs_environ = {**daemon.environ, "MSMON_INSECURE": "1"}
    assert local_endpoint(jobs_environ) == local_endpoint(daemon.environ, insecure=True)


def test_a_port_where_nobody_listens():
    pair = KeyPair.generate()
    error = failure(Endpoint(f"tcp://127.0.0.1:{free_port()}", pair.public, pair))
    assert isinstance(error, DaemonUnreachable)


def test_a_port_where_something_else_answers():
    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = threading.Thread(target=answer_in_http, args=(server,))
        answering.start()
        pair = KeyPair.generate()
        error = failure(Endpoint(f"tcp://127.0.0.1:{server.getsockname()[1]}", pair.public, pair))
        answering.join()
    assert isinstance(error, HandshakeRefused)


def answer_in_http(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4)


def test_a_port_where_something_is_silent():
    with socket.create_server(("127.0.0.1", 0)) as server:
        pair = KeyPair.generate()
        endpoint = Endpoint(f"tcp://127.0.0.1:{server.getsockname()[1]}", pair.public, pair)
        error = failure(endpoint, timeout_s=0.5)
    assert isinstance(error, HandshakeRefused)
    assert "does not complete the handshake" in error.message


def test_a_silent_port_does_not_cost_the_whole_time_out():
    with socket.create_server(("127.0.0.1", 0)) as server:
        pair = KeyPair.generate()
        endpoint = Endpoint(f"tcp://127.0.0.1:{server.getsockname()[1]}", pair.public, pair)
        with pytest.raises(HandshakeRefused, match="does not complete"), Client(endpoint, 600.0):
            pass


def test_a_daemon_that_dies_while_it_is_asked(daemon):
    daemon.start()
    with Client(daemon.endpoint()) as client:
        daemon.kill()
        with pytest.raises(DaemonUnreachable):
            client.request(StatusRequest(), timeout_s=3.0)

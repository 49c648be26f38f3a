"""Who may do what: local users by the kernel's word, remote ones by their key."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from msmon.bus.client import Client
from msmon.bus.codec import MESSAGE_TYPES
from msmon.bus.endpoints import Endpoint, remote_endpoint
from msmon.bus.keys import KeyPair, key_file_text, load_or_create_server_keys, write_new
from msmon.bus.messages import (
    Acknowledged,
    Command,
    MonitorRequest,
    Refused,
    Reply,
    StatusRequest,
    Welcome,
    WindowsReply,
)
from msmon.daemon.access.allow_list import AllowList
from msmon.daemon.access.authentication import Authenticator
from msmon.daemon.access.roles import ROLES_FOR, Role
from msmon.errors import CommandRefused, DaemonUnreachable, HandshakeRefused

OTHER_UID = 65534
OTHER_USER = Path(__file__).parents[2] / "fixtures" / "other_user.py"

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def as_other_user(daemon, expression: str) -> str:
    done = subprocess.run(
        [sys.executable, str(OTHER_USER), str(OTHER_UID), expression],
        env=daemon.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def open_directory(daemon) -> None:
    daemon.directory.chmod(0o755)


@root_only
def test_another_user_asks_and_commands_only_own_processes(daemon, agent):
    open_directory(daemon)
    daemon.start("--allow-users", "everybody")
    one = agent(11)
    assert "pid=11" in as_other_user(daemon, "ask(StatusRequest())")
    named = as_other_user(
        daemon, "ask(MonitorRequest('stop', {}, Selection(pids=[11]))).rows[0].text"
    )
    assert named == "the process belongs to uid 0, not to uid 65534"
    unnamed = as_other_user(daemon, "ask(MonitorRequest('stop')).outcome")
    assert unnamed == "none-registered"
    assert not one.got(Command)


@root_only
def test_another_user_registers_under_the_uid_and_pid_that_the_kernel_names(daemon):
    open_directory(daemon)
    daemon.start("--allow-users", "everybody")
    assert "Welcome" in as_other_user(daemon, "hello(os.getpid())")
    assert [row.uid for row in daemon.rows()] == [OTHER_UID]


@root_only
@pytest.mark.parametrize("silent", [False, True])
def test_another_user_cannot_register_or_take_over_a_process(daemon, agent, in_state, silent):
    open_directory(daemon)
    daemon.start("--allow-users", "everybody")
    victim = agent(11)
    if silent:
        victim.silent = True
        in_state(11, "lost")
    assert "has the pid" in as_other_user(daemon, "hello(11)")
    assert daemon.row(11).uid == 0
    assert len(daemon.rows()) == 1


@root_only
def test_another_user_is_kept_out_where_nobody_else_is_allowed(daemon):
    open_directory(daemon)
    daemon.start("--allow-users", "nobody")
    assert "is closed to uid 65534" in as_other_user(daemon, "ask(StatusRequest())")
    daemon.runtime.chmod(0o755)
    (daemon.runtime / "daemon.sock").chmod(0o666)
    assert "does not accept this user" in as_other_user(daemon, "ask(StatusRequest())")


@root_only
def test_another_user_exports_only_below_an_export_root(daemon):
    open_directory(daemon)
    daemon.start("--allow-users", "everybody", "--export-root", str(daemon.directory / "exports"))
    start = "MonitorRequest('start', {{'log_file': '{}'}}, timeout_s=1.0)"
    request = f"hello(os.getpid()) and [row.text for row in ask({start}).rows]"
    root = daemon.directory / "exports"
    root.mkdir()
    os.chown(root, OTHER_UID, OTHER_UID)
    refused = as_other_user(daemon, request.format(daemon.directory / "elsewhere"))
    assert "may not export" in refused
    allowed = as_other_user(daemon, request.format(root / "mine"))
    assert allowed.startswith("["), "a row for the process that said hello, no refusal"


@root_only
def test_a_group_that_may_connect_is_set_on_the_socket(daemon):
    open_directory(daemon)
    daemon.start("--allow-users", "nogroup")
    status = (daemon.runtime / "daemon.sock").stat()
    assert (status.st_gid, status.st_mode & 0o777) == (65534, 0o660)
    assert "Reply" in as_other_user(daemon, "ask(StatusRequest())")


# --- remote ---------------------------------------------------------------------------


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def remote(daemon, port: int, name: str = "", role: str = "") -> Endpoint:
    """Make a client's key, allow it under ``role``, and return the endpoint to use it."""
    pair = KeyPair.generate()
    if role:
        clients = daemon.directory / "keys" / "clients"
        clients.mkdir(mode=0o700, parents=True, exist_ok=True)
        (daemon.directory / "keys").chmod(0o700)
        values = {"public-key": pair.public.decode(), "role": role}
        write_new(clients / f"{name}.key", key_file_text(values), 0o644)
    server = load_or_create_server_keys(daemon.directory / "keys")
    return Endpoint(f"tcp://127.0.0.1:{port}", server.public, pair)


def ask(endpoint: Endpoint, message) -> Reply:
    with Client(endpoint, 5.0) as client:
        return client.request(message)


def test_a_remote_operator_commands_and_a_viewer_only_asks(daemon, agent, port):
    operator = remote(daemon, port, "olga", "operator")
    viewer = remote(daemon, port, "vera", "viewer")
    daemon.start("--listen", f"127.0.0.1:{port}")
    agent(11)
    assert ask(operator, MonitorRequest("stop")).outcome == "ok"
    assert ask(viewer, StatusRequest()).rows[0].pid == 11
    with pytest.raises(CommandRefused, match="key vera has the role viewer"):
        ask(viewer, MonitorRequest("stop"))


def test_a_remote_agent_key_neither_asks_nor_commands(daemon, port):
    agent_key = remote(daemon, port, "node7", "agent")
    daemon.start("--listen", f"127.0.0.1:{port}")
    for message in (StatusRequest(), MonitorRequest("stop")):
        with pytest.raises(CommandRefused, match="role agent"):
            ask(agent_key, message)


def test_a_key_is_refused_until_it_is_allowed_and_after_it_was_revoked(daemon, port, wait_for):
    stranger = remote(daemon, port)
    daemon.start("--listen", f"127.0.0.1:{port}")
    with pytest.raises(HandshakeRefused, match="does not accept this user or key"):
        ask(stranger, StatusRequest())

    known = remote(daemon, port, "olga", "operator")
    wait_for(lambda: accepted(known), "the new key is accepted")
    with Client(known, 5.0) as client:
        (daemon.directory / "keys" / "clients" / "olga.key").unlink()
        wait_for(lambda: refused(client), "the open connection has lost its rights")
    with pytest.raises(HandshakeRefused):
        ask(known, StatusRequest())


def accepted(endpoint: Endpoint) -> bool:
    try:
        ask(endpoint, StatusRequest())
    except HandshakeRefused:
        return False
    return True


def refused(client: Client) -> bool:
    try:
        client.request(StatusRequest())
    except CommandRefused as error:
        return "no longer allowed" in error.message
    except DaemonUnreachable:  # the connection was closed before the refusal came out of it
        return True
    return False


def test_a_client_key_file_that_is_broken_or_has_an_unknown_role_allows_nobody(tmp_path):
    clients = tmp_path / "clients"
    clients.mkdir()
    key = KeyPair.generate().public.decode()
    for name, values in {
        "short": {"public-key": key[:39], "role": "operator"},
        "root": {"public-key": key, "role": "root"},
        "user": {"public-key": key, "role": "user"},
    }.items():
        (clients / f"{name}.key").write_text(key_file_text(values))
    allow_list = AllowList(tmp_path)
    allow_list.refresh()
    assert allow_list.get(key) is None


def test_a_key_without_a_role_is_an_agents(tmp_path):
    (tmp_path / "clients").mkdir()
    key = KeyPair.generate().public.decode()
    (tmp_path / "clients" / "node7.key").write_text(key_file_text({"public-key": key}))
    allow_list = AllowList(tmp_path)
    allow_list.refresh()
    assert allow_list.get(key).role is Role.AGENT


def test_every_message_that_a_daemon_takes_has_its_roles():
    sent_by_daemon = {Welcome, Refused, Reply, WindowsReply, Command, Acknowledged}
    assert set(ROLES_FOR) == set(MESSAGE_TYPES.values()) - sent_by_daemon


def test_the_kernels_address_and_not_the_key_decides_locally(tmp_path):
    context = zmq.Context()
    authenticator = Authenticator(context, AllowList(tmp_path), local_users=False)
    try:
        own = f"localhost:{os.geteuid()}:0:5"
        assert authenticator.peer(own, "any key").role is Role.OPERATOR
        assert authenticator.peer("localhost:4242:0:5", "any key") is None
        assert authenticator.peer("localhost:x", "any key") is None
        assert authenticator.peer("10.0.0.1", "any key") is None
    finally:
        authenticator.close()
        context.term()


def test_remote_keys_are_read_from_the_directory(daemon, port):
    endpoint = remote(daemon, port, "olga", "operator")
    keys = daemon.directory / "client"
    keys.mkdir(mode=0o700)
    pair = endpoint.client_keys
    text = key_file_text({"public-key": pair.public.decode(), "secret-key": pair.secret.decode()})
    write_new(keys / "client.key_secret", text, 0o600)
    public = key_file_text({"public-key": endpoint.server_public_key.decode()})
    write_new(keys / "server.key", public, 0o644)
    daemon.start("--listen", f"127.0.0.1:{port}")
    assert ask(remote_endpoint("127.0.0.1", port, keys), StatusRequest()).outcome

"""Three hosts: a command line on one, a daemon and a simulated rank on each of the others.

The hosts are network namespaces, so the test needs root.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("three_hosts")

RANK = """
import time, msmon

msmon.init()
while True:
    time.sleep(0.02)
    msmon.step()
"""
READY_LIMIT_S = 15.0


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Host:
    """A network namespace, joined to another by a pair of virtual Ethernet devices."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.address = ""
        self._processes: list[subprocess.Popen[bytes]] = []
        directory.mkdir()
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")

    def join(self, other: Host, number: int) -> None:
        """Connect two hosts by a network of their own, and give both an address in it."""
        device = f"ms{os.getpid() % 10**8}-{number}"
        ip("link", "add", f"{device}a", "type", "veth", "peer", "name", f"{device}b")
        for host, end, last in ((self, "a", 1), (other, "b", 2)):
            address = f"10.77.{number}.{last}"
            ip("link", "set", device + end, "netns", host.name)
            ip("-n", host.name, "address", "add", f"{address}/30", "dev", device + end)
            ip("-n", host.name, "link", "set", device + end, "up")
            host.address = address

    def _command(self, module: str, arguments: Sequence[str]) -> list[str]:
        python = [sys.executable, "-W", "error", "-m", module]
        return ["ip", "netns", "exec", self.name, *python, *arguments]

    def _environ(self, **variables: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MSMON")}
        return {
            **kept,
            "MSMON_RUNTIME_DIR": str(self.directory / "run"),
            "MSMON_KEYS_DIR": str(self.directory / "keys"),
            "MSMONITOR_LOG_PATH": str(self.directory),
            **variables,
        }

    def msmon(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command("msmon.commands.main", arguments),
            env=self._environ(),
            capture_output=True,
            text=True,
            timeout=30,
        )

    def start_daemon(self) -> None:
        with (self.directory / "daemon.log").open("wb") as log:
            listen = ["--listen", self.address, "--heartbeat-s", "0.2"]
            command = self._command("msmon.commands.daemon", listen)
            self._processes.append(subprocess.Popen(command, env=self._environ(), stderr=log))

    def start_rank(self, rank: int) -> None:
        environ = self._environ(MSMON_SIMULATE="rate=1000", RANK=str(rank))
        self._processes.append(subprocess.Popen([sys.executable, "-c", RANK], env=environ))

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        ip("netns", "delete", self.name)  # This removes its devices too.


class Network:
    """``console`` is connected with each of ``nodes``. Each node has a daemon and a rank."""

    def __init__(self, directory: Path) -> None:
        self._open: list[Host] = []
        names = itertools.count()

        def host() -> Host:
            number = next(names)
            self._open.append(Host(f"msmon-{os.getpid()}-{number}", directory / str(number)))
            return self._open[-1]

        self.console = host()
        self.nodes = [host(), host()]
        for number, node in enumerate(self.nodes, 1):
            node.join(self.console, number)

    @property
    def addresses(self) -> str:
        return ",".join(node.address for node in self.nodes)

    def start(self) -> None:
        for rank, node in enumerate(self.nodes):
            node.start_daemon()
            node.start_rank(rank)

    def allow(self, name: str, role: str) -> str:
        """Make a key on the console. With a role, allow the key on both nodes."""
        keys = self.console.directory / name
        assert self.console.msmon("keys", "--keys", str(keys), "init").returncode == 0
        (keys / "servers").mkdir()
        for node in self.nodes:
            server = node.directory / "keys" / "server.key"
            shutil.copy(server, keys / "servers" / f"{node.address}.key")
            if role:
                public = str(keys / "client.key")
                done = node.msmon("keys", "allow", public, "--role", role, "--name", name)
                assert done.returncode == 0, done.stderr
        return str(keys)

    def close(self) -> None:
        for host in self._open:
            host.close()


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the ip command")
    directory = Path(tempfile.mkdtemp(prefix="msmon-"))
    try:
        made = Network(directory)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    try:
        for node in made.nodes:
            assert node.msmon("keys", "init", "--daemon").returncode == 0
        made.start()
        yield made
        for node in made.nodes:
            print((node.directory / "daemon.log").read_text())
    finally:
        made.close()
        shutil.rmtree(directory)


@pytest.fixture(scope="module")
def operator(network) -> str:
    return network.allow("olga", "operator")


def ask(network: Network, keys: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    remote = ("--host", network.addresses, "--keys", keys, "--timeout", "5")
    return network.console.msmon(*arguments, *remote)


def await_ranks(network: Network, keys: str) -> None:
    end_s = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < end_s:
        done = ask(network, keys, "status", "--json")
        rows = json.loads(done.stdout).get("rows", ()) if done.stdout else ()
        if {row["rank"] for row in rows} == {0, 1}:
            return
    raise AssertionError(f"the ranks are not listed: {done.stdout}{done.stderr}")


def test_an_operator_commands_both_nodes_at_once(network, operator):
    await_ranks(network, operator)
    started = ask(network, operator, "npu-monitor", "start", "--kind", "Kernel")
    assert started.returncode == 0, started.stderr
    assert started.stdout.count(": ok") == 2
    states = json.loads(ask(network, operator, "status", "--json").stdout)
    assert [row["state"] for row in states["rows"]] == ["monitoring", "monitoring"]
    assert len(states["daemon"]["daemons"]) == 2
    assert ask(network, operator, "npu-monitor", "stop").returncode == 0


def test_a_command_for_a_rank_reaches_the_node_that_has_it(network, operator):
    await_ranks(network, operator)
    done = ask(network, operator, "npu-monitor", "start", "--rank", "1", "--kind", "Kernel")
    assert (done.returncode, done.stdout.count("rank 1")) == (0, 1)
    assert ask(network, operator, "npu-monitor", "stop", "--rank", "1").returncode == 0
    done = ask(network, operator, "npu-monitor", "stop", "--rank", "7")
    assert done.returncode == 1
    assert "no rank 7 is known" in done.stderr


def test_a_viewer_may_only_ask(network):
    viewer = network.allow("vera", "viewer")
    await_ranks(network, viewer)
    refused = ask(network, viewer, "npu-monitor", "stop")
    assert refused.returncode == 1
    assert "key vera has the role viewer, which may not send 'monitor-request'" in refused.stderr


def test_an_unknown_key_is_refused(network):
    stranger = network.allow("steve", "")
    refused = ask(network, stranger, "status")
    assert refused.returncode == 1
    assert "does not accept this user or key" in refused.stderr


def test_a_node_that_is_away_is_named_and_the_other_answers(network, operator):
    await_ranks(network, operator)
    node, away = network.nodes[0], network.console.address  # No daemon listens there.
    servers = Path(operator) / "servers"
    shutil.copy(servers / f"{node.address}.key", servers / f"{away}.key")
    remote = ("--host", f"{node.address},{away}", "--keys", operator, "--timeout", "3")
    partly = network.console.msmon("status", *remote)
    assert partly.returncode == 1
    assert f"{away}: no daemon listens" in partly.stderr
    assert f"{node.address}: " not in partly.stderr


def test_every_command_is_in_the_audit_log_of_its_daemon(network, operator):
    await_ranks(network, operator)
    ask(network, operator, "npu-monitor", "stop")
    for node in network.nodes:
        lines = (node.directory / "keys" / "audit.jsonl").read_text().splitlines()
        entry = json.loads(lines[-1])
        assert (entry["who"], entry["command"]) == ("key olga", "npu-monitor stop")

"""A root daemon, a rank of one user with a recording, and an attacker that is another user.

``victim``   the rank of user VICTIM, simulated, watched by a daemon that runs as root;
             ``with victim.recording():`` checks after the block that the export holds exactly what
             the simulation's ledger says, that the victim's requests were answered in time, and
             that the daemon is the same process, within its bound of memory
``attack``   runs a function of ``attacker.py`` as user ATTACKER, or with a key over TCP, and
             checks that the attack took place

A test module may set HEARTBEAT_S, the interval of its daemon's heartbeats.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from exports import databases
from job import Job, Rank, wait_for
from ports import free_port

from msmon.bus.keys import KeyPair, key_file_text, load_or_create_server_keys, write_new
from msmon.bus.messages import Selection, StatusRequest
from msmon.bus.rows import StatusRow
from msmon.errors import BusError

ATTACKS = Path(__file__).parent
VICTIM, ATTACKER = 1_200_000 + 2 * os.getpid(), 1_200_001 + 2 * os.getpid()
ANSWER_LIMIT_S = 20.0
"""Generous: two processors may be shared with other tests. Alone it is well below a second."""
MEMORY_BOUND_BYTES = 600 << 20
ATTACK_LIMIT_S = 40.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs other users, where we can't become them."""
    if os.geteuid() != 0:
        for item in items:
            if item.path.is_relative_to(ATTACKS):
                item.add_marker(pytest.mark.skip(reason="only root can become other users"))


class Victim:
    """A rank of user VICTIM and the daemon that watches it."""

    def __init__(self, directory: Path, heartbeat_s: float) -> None:
        self.port = free_port()
        self.directory = directory
        self.job = Job(directory, 1, "rate=4000,step_ms=100,seed=3")
        self.job.daemon_options = (
            *("--allow-users", "everybody", "--heartbeat-s", str(heartbeat_s)),
            *("--listen", f"127.0.0.1:{self.port}"),
        )
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MSMON")},
            "MSMON_RUNTIME_DIR": str(directory / "run"),
            "PYTHONPATH": os.pathsep.join([str(ATTACKS.parent), *sys.path]),
        }
        self.home = directory / "victim"
        self.home.mkdir()
        os.chown(self.home, VICTIM, VICTIM)
        self.session_id = ""
        self.states: set[str] = set()
        """The states in which its row was seen."""
        self._sessions = 0
        self._recorded: Counter[str] = Counter()

    def start(self) -> None:
        self.job.start_daemon()
        self.begin(self.spawn())

    def spawn(self) -> Rank:
        """Start a rank of the victim that waits for ``begin`` before it loads its agent."""
        number = len(self.job.ranks)
        ledger, stall = self.home / f"ledger{number}.json", self.home / "stall.json"
        environ = {
            **self.environ,
            "MSMON_SIMULATE": f"rate=4000,step_ms=100,seed=3,ledger={ledger}",
            "MSMONITOR_LOG_PATH": str(self.home),
            **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
        }
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(ATTACKS / "victim.py"), str(VICTIM)],
            env=environ,
            stdin=subprocess.PIPE,
        )
        self._recorded = Counter()
        self.job.ranks.append(Rank(0, process, ledger, stall))
        return self.rank

    def begin(self, rank: Rank) -> None:
        """Let a rank train, and wait until it is registered."""
        rank.process.stdin.close()
        self.job.await_states("idle", rank)

    def end(self) -> None:
        """End the rank normally, and wait until the daemon knows."""
        self.rank.process.terminate()
        self.rank.process.wait()
        self.rank.killed = True
        wait_for(lambda: self.row().state.value == "ended", "the rank has ended")

    @property
    def rank(self) -> Rank:
        """Its latest rank."""
        return self.job.ranks[-1]

    @property
    def memory_bytes(self) -> int:
        """Memory of the daemon; 0 while there is none."""
        try:
            return int(psutil.Process(self.job.daemon.pid).memory_info().rss)
        except psutil.NoSuchProcess:
            return 0

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record during the block, and check that nothing has disturbed it."""
        exports = self.home / f"export{self._sessions}"
        self._sessions += 1
        reply = self.job.command(
            "start",
            self.rank,
            kinds="Kernel,Marker,API",
            log_file=str(exports),
            export_type="DB",
        )
        assert reply.outcome == "ok", reply
        self.session_id = reply.rows[0].session_id
        try:
            yield
            self.check_answers()
            assert self.memory_bytes < MEMORY_BOUND_BYTES
        except BaseException:
            self.job.command("stop", self.rank)
            self._recorded = Counter(self.rank.recorded())
            raise
        reply = self.job.command("stop", self.rank)
        assert reply.outcome == "ok", reply
        self.job.await_states("idle", self.rank)
        assert self.job.daemon.poll() is None
        self._check_exact(databases(exports)[self.rank.pid])

    def check_answers(self) -> None:
        """The victim's row is there in time, and it records."""
        assert self.row().state.value == "monitoring"

    def row(self) -> StatusRow:
        """Return the victim's row, which must be there in time. A restarted daemon has it soon."""
        request = StatusRequest(Selection(pids=[self.rank.pid]))
        deadline_s = time.monotonic() + ANSWER_LIMIT_S
        while True:
            with contextlib.suppress(BusError):  # as a person would, try again
                rows = self.job.request(request, ANSWER_LIMIT_S).rows
                own = [row for row in rows if row.uid == VICTIM]
                if own:
                    break
            assert time.monotonic() < deadline_s
        assert len(own) == 1
        self.states.add(own[0].state.value)
        return own[0]

    def _check_exact(self, database) -> None:
        recorded = Counter(self.rank.recorded())
        in_session, self._recorded = recorded - self._recorded, recorded
        assert database.counts() == in_session
        assert (database.gaps(), database.end, database.doubled()) == ([], "stopped", 0)


@pytest.fixture(scope="module")
def victim(request: pytest.FixtureRequest) -> Iterator[Victim]:
    directory = Path(tempfile.mkdtemp(prefix="msmon-")).resolve()
    directory.chmod(0o755)
    made = Victim(directory, getattr(request.module, "HEARTBEAT_S", 0.25))
    with made.job:
        made.start()
        yield made
        log = (directory / "daemon.log").read_text()
        print(log[-20_000:])
        assert "Traceback" not in log
    shutil.rmtree(directory)


@pytest.fixture
def attack(victim: Victim) -> Callable[..., list[str]]:
    """Run one function of ``attacker.py`` to its end; return what the daemon said to it.

    ``role``: attack over TCP with a key of this role. Meanwhile the victim must get answers, and
    ``watch`` is called again and again.
    """

    def run(
        name: str,
        *arguments: object,
        role: str = "",
        watch: Callable[[], object] = victim.check_answers,
    ) -> list[str]:
        environ = {**victim.environ}
        if role:
            environ |= key_variables(victim, role)
        uid = "-1" if role else str(ATTACKER)
        process = subprocess.Popen(
            [sys.executable, str(ATTACKS / "attacker.py"), uid, name, *map(str, arguments)],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                end_s = time.monotonic() + ATTACK_LIMIT_S
                while process.poll() is None:
                    assert time.monotonic() < end_s
                    watch()
                    assert victim.memory_bytes < MEMORY_BOUND_BYTES
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(0.3)
                printed = process.stdout.read()
            finally:
                process.kill()
        assert process.returncode == 0, "the attack did not take place"
        told = json.loads(printed)
        assert told["sent"] > 0
        return told["said"]

    return run


def key_variables(victim: Victim, role: str) -> dict[str, str]:
    """Allow a key of this role, and return what lets the attacker use it."""
    pair, keys = KeyPair.generate(), victim.job.keys
    clients = keys / "clients"
    clients.mkdir(mode=0o700, exist_ok=True)
    name = f"{role}-{time.monotonic_ns()}"
    values = {"public-key": pair.public.decode(), "role": role}
    write_new(clients / f"{name}.key", key_file_text(values), 0o644)
    server = load_or_create_server_keys(keys)
    time.sleep(0.3)  # the daemon reads the list every heartbeat / 4
    texts = (server.public, pair.public, pair.secret)
    return {
        "ATTACK_URL": f"tcp://127.0.0.1:{victim.port}",
        "ATTACK_KEYS": " ".join(text.decode() for text in texts),
    }

"""Faults, one after the other, on a job that is being exported; and the reckoning at its end.

For every rank that was not killed: records = rows in its file + drops counted in it, for
each kind, exactly; nothing is there twice. Used short by the tests, long by
``scripts/soak``.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from exports import Database, JsonLines, databases
from job import ALL_KINDS, TRAIN, Job, Rank, wait_for
from ports import free_port
from surroundings import Clock, Network, SmallDisk, possible

from msmon.bus.keys import KeyPair, key_file_text
from msmon.errors import BusError

DAY_S = 86_400.0
REMOTE = """
from pathlib import Path
from msmon.agent import lifecycle
from msmon.bus.endpoints import remote_endpoint
lifecycle.local_endpoint = lambda environ: remote_endpoint("{host}", {port}, Path("{keys}"))
"""
"""Before the training program: makes its agent connect to a daemon on another host."""


@dataclass(frozen=True)
class Load:
    """How much and how long."""

    ranks: int = 8
    rate: int = 50_000
    calm_s: float = 5.0
    """Between two faults."""
    away_s: float = 10.0
    stopped_s: float = 20.0
    slow_s: float = 20.0
    disk_bytes: int = 8 << 30
    seconds: float = 0.0
    """Rounds of all faults begin for so long, at least one."""


@dataclass
class Reckoning:
    """What became of the records of one rank, all kinds together."""

    rank: Rank
    recorded: int
    written: int
    dropped: dict[str, int]
    """By the stage that dropped them."""
    problems: list[str]


@dataclass
class Report:
    """The end of a run. ``problems`` is empty when everything holds."""

    problems: list[str] = field(default_factory=list)
    faults: list[tuple[str, float]] = field(default_factory=list)
    """Name and seconds until every rank delivered again."""
    ranks: list[Reckoning] = field(default_factory=list)
    figures: dict[str, str] = field(default_factory=dict)


class FaultRun:
    """One run in a directory of its own. ``report`` is filled as it goes on."""

    def __init__(self, directory: Path, load: Load, say: Callable[[str], None]) -> None:
        self.load = load
        self.report = Report()
        self._say = say
        self._directory = directory
        self._exports = directory / "disk" / "db"
        self._lines = directory / "lines"
        simulation = f"rate={load.rate},step_ms=100,preload=1"
        self._job = Job(directory, load.ranks, simulation)
        self._clock = Clock(directory / "clock")
        self._killed_ns: dict[int, int] = {}
        self._disk: SmallDisk | None = None
        self._network: Network | None = None

    def run(self) -> Report:
        """Start everything, let every fault happen, stop, and reckon."""
        with ExitStack() as stack:
            if possible():
                disk = SmallDisk(self._directory / "disk", self.load.disk_bytes)
                self._disk = stack.enter_context(disk)
                self._network = stack.enter_context(Network())
            stack.enter_context(self._job)
            peaks = stack.enter_context(PeakMemory(self._job))
            self._start()
            until_s = time.monotonic() + self.load.seconds
            while not self.report.faults or time.monotonic() < until_s:
                for name, fault in self._faults():
                    self._strike(name, fault)
            self._finish()
            self._reckon()
            self._quote(peaks)
        return self.report

    # --- start and end ------------------------------------------------------------------

    def _start(self) -> None:
        job = self._job
        job.daemon_variables = self._clock.variables
        job.daemon_options = ("--heartbeat-s", "0.5", "--sink", f"jsonl:path={self._lines}")
        if self._network is not None:
            self._port = free_port()
            job.daemon_options += ("--listen", f"{self._network.host}:{self._port}")
        job.start_daemon()
        wait_for(lambda: (job.directory / "run" / "daemon.sock").exists(), "the daemon")
        remote = 1 if self._network is not None else 0
        for rank in range(job.size - remote):
            job.start_rank(rank)
        if self._network is not None:
            self._start_remote(self._network, job.size - 1)
        job.await_states("idle")
        self._monitor()

    def _start_remote(self, network: Network, rank: int) -> None:
        """Start a rank in another network namespace, with a key that the daemon knows."""
        keys = self._directory / "remote"
        keys.mkdir(mode=0o700)
        pair = KeyPair.generate()
        public = {"public-key": pair.public.decode()}
        secret = keys / "client.key_secret"
        secret.touch(0o600)
        secret.write_text(key_file_text({**public, "secret-key": pair.secret.decode()}))
        shutil.copy(self._job.keys / "server.key", keys)
        allowed = self._job.keys / "clients"
        allowed.mkdir(mode=0o700, exist_ok=True)
        (allowed / "remote.key").write_text(key_file_text(public))
        prelude = REMOTE.format(host=network.host, port=self._port, keys=keys)
        self._job.start_rank(rank, prelude + TRAIN, network.prefix)

    def _monitor(self, *ranks: Rank) -> None:
        export = {"log_file": str(self._exports), "export_type": "DB"}
        reply = self._job.command("start", *ranks, kinds=ALL_KINDS, report_interval_s=1.0, **export)
        assert reply.outcome == "ok", reply

    def _finish(self) -> None:
        time.sleep(self.load.calm_s)
        began_s = time.monotonic()
        reply = self._job.command("stop")
        assert reply.outcome == "ok", reply
        self._job.await_states("idle")
        self.report.figures["stop of all ranks"] = f"{time.monotonic() - began_s:.2f} s"
        self._job.end_ranks()
        self._job.end_daemon()

    # --- faults -------------------------------------------------------------------------

    def _faults(self) -> Iterator[tuple[str, Callable[[], None]]]:
        yield "daemon killed", self._kill_daemon
        yield "daemon stopped (SIGSTOP)", self._suspend_daemon
        yield "rank killed and replaced", self._replace_rank
        if self._disk is not None:
            yield "disk full", self._fill_disk
        yield "slow outputs", self._slow_outputs
        if self._network is not None:
            yield "network cut", self._cut_network
        yield "daemon's clock shifted", self._shift_clock
        yield "daemon restarted", self._restart_daemon

    def _strike(self, name: str, fault: Callable[[], None]) -> None:
        time.sleep(self.load.calm_s)
        self._say(name)
        fault()
        over_s = time.monotonic()
        self._await_deliveries()
        self.report.faults.append((name, time.monotonic() - over_s))

    def _await_deliveries(self) -> None:
        """Wait until the daemon sees every rank record, and the outputs have caught up."""
        job = self._job
        before = job.await_states("monitoring")

        def deliver() -> bool:
            rows = job.rows()
            return all(
                rank.pid in rows
                and sum(rows[rank.pid].kept.values()) > sum(before[rank.pid].kept.values())
                for rank in job.living
            )

        wait_for(deliver, "records of every rank")

    def _kill_daemon(self) -> None:
        self._job.end_daemon(signal.SIGKILL)
        time.sleep(self.load.away_s)
        self._job.start_daemon()

    def _restart_daemon(self) -> None:
        self._job.end_daemon(signal.SIGTERM)
        self._job.start_daemon()

    def _suspend_daemon(self) -> None:
        assert self._job.daemon is not None
        self._job.daemon.send_signal(signal.SIGSTOP)
        time.sleep(self.load.stopped_s)
        self._job.daemon.send_signal(signal.SIGCONT)

    def _replace_rank(self) -> None:
        job = self._job
        victim = job.living[1]
        self._killed_ns[victim.pid] = time.time_ns()
        victim.kill()
        successor = job.start_rank(victim.rank)
        job.await_states("idle", successor)
        self._monitor(successor)

    def _fill_disk(self) -> None:
        assert self._disk is not None
        self._disk.fill()
        try:
            wait_for(lambda: "full" in self._problems(), "status that names the full disk")
            time.sleep(self.load.away_s)
        finally:
            self._disk.empty()
        wait_for(lambda: not self._problems(), "recovery from the full disk")

    def _problems(self) -> str:
        with contextlib.suppress(BusError):
            sinks = self._job.daemon_row().sinks
            return "; ".join(sink.problem for sink in sinks if sink.problem)
        return "no daemon"

    def _slow_outputs(self) -> None:
        """Let the processes of the file outputs run for only a fifth of the time."""
        assert self._job.daemon is not None
        outputs = psutil.Process(self._job.daemon.pid).children()
        assert outputs, "no output runs in a process of its own"
        until_s = time.monotonic() + self.load.slow_s
        while time.monotonic() < until_s:
            for output in outputs:
                output.suspend()
            time.sleep(0.4)
            for output in outputs:
                output.resume()
            time.sleep(0.1)

    def _cut_network(self) -> None:
        assert self._network is not None
        self._network.cut()
        time.sleep(self.load.away_s)
        self._network.mend()

    def _shift_clock(self) -> None:
        """Days forward, where the daemon is also killed and restarted, then back and beyond."""
        self._clock.shift(3 * DAY_S)
        time.sleep(self.load.calm_s)
        self._job.end_daemon(signal.SIGKILL)
        self._job.start_daemon()
        self._job.await_states("monitoring")
        self._clock.shift(-3 * DAY_S)
        time.sleep(self.load.calm_s)
        self._clock.shift(0)

    # --- the reckoning ------------------------------------------------------------------

    def _reckon(self) -> None:
        found = databases(self._exports)
        lines = list(self._lines.glob("*.jsonl"))
        for rank in self._job.ranks:
            if rank.pid not in found:
                self.report.problems.append(f"rank {rank.rank} has no database")
                continue
            database = found[rank.pid]
            if rank.killed:
                self._reckon_killed(rank, database)
                continue
            reckoning = reckon(rank, database, JsonLines(lines, rank.pid))
            self.report.ranks.append(reckoning)
            self.report.problems += reckoning.problems

    def _reckon_killed(self, rank: Rank, database: Database) -> None:
        (last_ns,) = database.query("SELECT max(endNs) FROM TASK")[0]
        missing_s = (self._killed_ns[rank.pid] - last_ns) / 1e9
        self.report.figures[f"missing of killed rank {rank.rank}"] = f"{missing_s:.2f} s"
        if database.end != "lost" or database.doubled():
            self.report.problems.append(f"killed rank {rank.rank}: {database.end}")

    def _quote(self, peaks: PeakMemory) -> None:
        stalls = [rank.longest_stall_s() for rank in self._job.living]
        figures = self.report.figures
        figures["longest stall of a training loop"] = f"{max(stalls) * 1e3:.0f} ms"
        figures["peak memory of the daemon"] = f"{peaks.daemon_bytes >> 20} MiB"
        figures["peak memory of an output's process"] = f"{peaks.output_bytes >> 20} MiB"
        figures["peak memory of a rank"] = f"{peaks.rank_bytes >> 20} MiB"
        dropped: Counter[str] = Counter()
        for reckoning in self.report.ranks:
            dropped.update(reckoning.dropped)
        figures["records"] = f"{sum(item.recorded for item in self.report.ranks):,}"
        figures["dropped and counted"] = ", ".join(
            f"{stage} {count:,}" for stage, count in sorted(dropped.items())
        )


def reckon(rank: Rank, database: Database, lines: JsonLines) -> Reckoning:
    """Compare what a rank recorded with what its files hold and what they say is missing."""
    recorded, written = rank.recorded(), database.counts()
    dropped: Counter[str] = Counter()
    by_kind: Counter[str] = Counter()
    problems = []
    for stage, kind, count, reason in database.gaps():
        if count is None:
            problems.append(f"an unknown number was lost: {stage}, {reason}")
        else:
            dropped[stage] += count
            by_kind[kind] += count
    if written + by_kind != Counter(recorded):
        problems.append(f"recorded {recorded}, written {written}, dropped {by_kind}")
    if database.doubled():
        problems.append(f"{database.doubled()} kernels are in the database twice")
    problems += _reckon_lines(recorded, lines)
    label = f"rank {rank.rank} (pid {rank.pid}): "
    return Reckoning(
        rank,
        sum(recorded.values()),
        sum(written.values()),
        dict(dropped),
        [label + problem for problem in problems],
    )


def _reckon_lines(recorded: dict[str, int], lines: JsonLines) -> list[str]:
    """Markers are left out: lines don't hold those without a counterpart."""
    total = lines.counts()
    for gap in lines.gaps():
        if gap["records"] is None:
            return [f"JSONL: an unknown number was lost: {gap['stage']}, {gap['reason']}"]
        total.update(gap["records"])
    del total["Marker"]
    expected = {kind: count for kind, count in recorded.items() if kind != "Marker"}
    return [] if total == expected else [f"JSONL: recorded {expected}, found {dict(total)}"]


class PeakMemory:
    """Watches the memory (USS: what a process has for itself) of daemon, outputs and ranks."""

    def __init__(self, job: Job) -> None:
        self.daemon_bytes = self.output_bytes = self.rank_bytes = 0
        self._job = job
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            daemon = self._job.daemon
            with contextlib.suppress(psutil.Error):
                if daemon is not None:
                    process = psutil.Process(daemon.pid)
                    self.daemon_bytes = max(self.daemon_bytes, _own_bytes(process))
                    for child in process.children():
                        self.output_bytes = max(self.output_bytes, _own_bytes(child))
            for rank in list(self._job.ranks):
                with contextlib.suppress(psutil.Error):
                    own = _own_bytes(psutil.Process(rank.pid))
                    self.rank_bytes = max(self.rank_bytes, own)


def _own_bytes(process: psutil.Process) -> int:
    return int(process.memory_full_info().uss)

"""Strikes a job that is being exported with one fault after the other.

At the end ``reckoning`` compares what each rank recorded with what its files hold. The tests run
it for a short time, ``scripts/soak`` for a long one.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from exports import Database, JsonLines, WindowLines, databases
from job import ALL_KINDS, TRAIN, Job, Rank, wait_for
from peak_memory import PeakMemory
from ports import free_port
from reckoning import Reckoning, reckon
from surroundings import Clock, Network, SmallDisk, possible

from msmon.bus.keys import KeyPair, key_file_text
from msmon.bus.messages import MonitorRequest
from msmon.errors import BusError

DAY_S = 86_400.0
_SHORT_STOP_S = 5.0
REMOTE = """
from pathlib import Path
from msmon.agent import lifecycle
from msmon.bus.endpoints import remote_endpoint
lifecycle.local_endpoint = lambda environ: remote_endpoint("{host}", {port}, Path("{keys}"))
"""
"""Code before the training program. It makes the agent connect to a daemon on another host."""


@dataclass(frozen=True)
class Load:
    """How much the job records and how long each fault lasts."""

    ranks: int = 8
    rate: int = 50_000
    calm_s: float = 5.0
    """Time between two faults."""
    away_s: float = 10.0
    """How long the daemon is gone, the disk is full, the network is cut."""
    stopped_s: float = 20.0
    slow_s: float = 20.0
    stall_s: float = 15.0
    """How long one output's process is stopped. After 5 s it is left behind."""
    hold_s: float = 12.0
    """How long one rank holds the GIL."""
    interval_s: float = 5.0
    """Of a window."""
    disk_bytes: int = 8 << 30
    seconds: float = 0.0
    """A new round of all faults begins until so much time has passed. There is at least one."""


@dataclass
class Report:
    """The result of a run. ``problems`` is empty if no record was lost without being counted."""

    problems: list[str] = field(default_factory=list)
    faults: list[tuple[str, float]] = field(default_factory=list)
    """Name of each fault, and seconds from its end until every rank delivered again."""
    ranks: list[Reckoning] = field(default_factory=list)
    figures: dict[str, str] = field(default_factory=dict)


class FaultRun:
    """One run in a directory of its own. It fills ``report`` while it goes on."""

    def __init__(self, directory: Path, load: Load, say: Callable[[str], None]) -> None:
        self.load = load
        self.report = Report()
        self._say = say
        self._directory = directory
        self._exports = directory / "disk" / "db"
        self._lines = directory / "lines"
        self._windows = directory / "windows.json"
        simulation = f"rate={load.rate},step_ms=100,preload=1"
        self._job = Job(directory, load.ranks, simulation)
        self._clock = Clock(directory / "clock")
        self._clock_of_ranks = Clock(directory / "clock-of-ranks")
        self._killed_ns: dict[int, int] = {}
        self._disk: SmallDisk | None = None
        self._network: Network | None = None

    def run(self) -> Report:
        """Start everything, cause every fault, stop, and compare records with files."""
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
        job.daemon_options = (
            *("--heartbeat-s", "0.5", "--sink", f"jsonl:path={self._lines}"),
            *("--sink", f"metrics-json:path={self._windows}"),
        )
        if self._network is not None:
            self._port = free_port()
            job.daemon_options += ("--listen", f"{self._network.host}:{self._port}")
        job.start_daemon()
        wait_for(lambda: (job.directory / "run" / "daemon.sock").exists(), "the daemon")
        remote = 1 if self._network is not None else 0
        for rank in range(job.size - remote):
            self._start_rank(rank)
        if self._network is not None:
            self._start_remote(self._network, job.size - 1)
        job.await_states("idle")
        self._monitor()

    def _start_rank(self, rank: int) -> Rank:
        """Start a rank. Every second one has a clock that is going to be shifted."""
        variables = {"HOLD_S": str(self.load.hold_s)}
        if rank % 2:
            variables.update(self._clock_of_ranks.variables)
        return self._job.start_rank(rank, variables=variables)

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
        reply = self._job.command(
            "start", *ranks, kinds=ALL_KINDS, report_interval_s=self.load.interval_s, **export
        )
        assert reply.outcome == "ok", reply

    def _finish(self) -> None:
        """Stop on a full disk, and have the daemon restarted on it; then there is room again."""
        time.sleep(self.load.calm_s)
        if self._disk is None:
            self._stop()
        else:
            self._disk.fill()
            wait_for(lambda: "full" in self._problems(), "status that names the full disk")
            self._stop_in_vain()
            self._restart_daemon()
            self._disk.empty()
        began_s = time.monotonic()
        self._job.await_states("idle")
        wait_for(self._all_is_written, "all outputs to have written")
        self.report.figures["until all is written"] = f"{time.monotonic() - began_s:.2f} s"
        self._job.end_ranks()
        self._job.end_daemon()

    def _stop(self) -> None:
        reply = self._job.command("stop")
        assert reply.outcome == "ok", reply

    def _stop_in_vain(self) -> None:
        """Check that a stop says why records can't be written.

        Some ranks may find room for their last ones. The account shows whether that is true.
        """
        reply = self._job.request(MonitorRequest("stop", timeout_s=_SHORT_STOP_S))
        failed = [row.text for row in reply.answer_rows if not row.ok]
        if not failed or not all("can't be written" in text for text in failed):
            self.report.problems.append(f"a stop on a full disk: {reply}")

    def _all_is_written(self) -> bool:
        """Whether no output has anything to do, and each database says how its session ended."""
        if self._problems() or any(row.queue_bytes for row in self._job.daemon_row().sinks):
            return False
        return all(database.end != "unknown" for database in databases(self._exports).values())

    # --- faults -------------------------------------------------------------------------

    def _faults(self) -> Iterator[tuple[str, Callable[[], None]]]:
        yield "daemon killed", self._kill_daemon
        yield "daemon stopped (SIGSTOP)", self._suspend_daemon
        yield "rank killed and replaced", self._replace_rank
        if self._disk is not None:
            yield "disk full", self._fill_disk
        yield "rank ended (SIGTERM) and replaced", self._end_rank
        yield "slow outputs", self._slow_outputs
        yield "an output stopped", self._stall_output
        yield "a rank holds the GIL", self._hold_gil
        if self._network is not None:
            yield "network cut", self._cut_network
        yield "daemon's clock shifted", self._shift_clock
        yield "clocks of ranks shifted", self._shift_clocks_of_ranks
        yield "daemon restarted", self._restart_daemon

    def _strike(self, name: str, fault: Callable[[], None]) -> None:
        time.sleep(self.load.calm_s)
        self._say(name)
        fault()
        over_s = time.monotonic()
        self._await_deliveries()
        self.report.faults.append((name, time.monotonic() - over_s))

    def _await_deliveries(self) -> None:
        """Wait until every rank has sent new records since this call."""
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
        self._start_successor(victim)

    def _end_rank(self) -> None:
        """Let a rank end in good order: its session is complete.

        Its agent is gone, so the daemon must have written the rest before the next fault.
        """
        ended = self._job.living[0]
        ended.end()
        wait_for(lambda: self._is_complete(ended), "its last records")
        self._start_successor(ended)

    def _is_complete(self, rank: Rank) -> bool:
        """Whether the files of a rank that has ended say so, in both formats."""
        lines = max(self._lines.glob(f"msmonitor_{rank.pid}_*"))
        last = lines.read_bytes().rstrip().rpartition(b"\n")[2]
        return databases(self._exports)[rank.pid].end != "unknown" and b"rank_device_map" in last

    def _start_successor(self, former: Rank) -> None:
        successor = self._start_rank(former.rank)
        self._job.await_states("idle", successor)
        self._monitor(successor)

    def _hold_gil(self) -> None:
        """Have a rank hold the GIL: nothing of the agent in it runs meanwhile."""
        held = next(rank for rank in self._job.living if rank.rank < self._job.size - 1)
        held.process.send_signal(signal.SIGUSR1)
        time.sleep(self.load.hold_s)

    def _stall_output(self) -> None:
        """Stop the process that writes the databases. The other outputs go on meanwhile."""
        stalled = self._job.output_process(".db")
        stalled.suspend()
        time.sleep(self.load.stall_s)
        stalled.resume()
        wait_for(lambda: not self._problems(), "recovery of the stopped output")

    def _shift_clocks_of_ranks(self) -> None:
        """Step the clocks of half of the ranks forward, then back behind the true time."""
        for shift_s in (90.0, -90.0, 0.0):
            self._clock_of_ranks.shift(shift_s)
            time.sleep(self.load.calm_s)

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
        """Let the processes of the file outputs run only a fifth of the time."""
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
        """Shift the clock three days forward, kill the daemon meanwhile, then shift it back.

        It goes back to three days before the true time, and at last to the true time.
        """
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
        """Compare what each rank recorded with its files."""
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
            windows = WindowLines(self._windows, rank.pid)
            reckoning = reckon(rank, database, JsonLines(lines, rank.pid), windows)
            self.report.ranks.append(reckoning)
            self.report.problems += reckoning.problems

    def _reckon_killed(self, rank: Rank, database: Database) -> None:
        (last_ns,) = database.query("SELECT max(endNs) FROM TASK")[0]
        missing_s = (self._killed_ns[rank.pid] - last_ns) / 1e9
        self.report.figures[f"missing of killed rank {rank.rank}"] = f"{missing_s:.2f} s"
        if database.end != "lost" or database.doubled():
            self.report.problems.append(f"killed rank {rank.rank}: {database.end}")

    def _quote(self, peaks: PeakMemory) -> None:
        stalls = [rank.longest_stall_s() for rank in self._job.ranks if not rank.killed]
        figures = self.report.figures
        figures["longest stall of a training loop"] = f"{max(stalls) * 1e3:.0f} ms"
        figures["peak memory of the daemon"] = f"{peaks.daemon_bytes >> 20} MiB"
        figures["peak memory of an output's process"] = f"{peaks.output_bytes >> 20} MiB"
        figures["peak memory of a rank"] = f"{peaks.rank_bytes >> 20} MiB"
        dropped: Counter[str] = Counter()
        for reckoning in self.report.ranks:
            dropped.update(reckoning.dropped)
        figures["records in windows"] = f"{sum(item.in_windows for item in self.report.ranks):,}"
        figures["records"] = f"{sum(item.recorded for item in self.report.ranks):,}"
        figures["dropped and counted"] = ", ".join(
            f"{stage} {count:,}" for stage, count in sorted(dropped.items())
        )

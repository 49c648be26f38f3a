"""``msmon demo``: the whole path on this machine, without an NPU: a daemon, simulated
ranks, one of them slow, and the table of operators that shows which."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from msmon.bus.messages import MonitorRequest, Reply
from msmon.bus.words import MonitorAction, Outcome
from msmon.commands.asking.answers import in_rank_order, sentence
from msmon.commands.asking.parameters import option_from
from msmon.commands.demo.cluster import METRICS_FILE, Cluster
from msmon.commands.demo.operator_table import operator_table
from msmon.commands.demo.watching import DemoWatch
from msmon.commands.signals import ended_by_signals
from msmon.errors import MsmonError, UsageError
from msmon.live.feed import Feed
from msmon.settings.options import Option, real_number, whole_number

STEP_S = 0.2
REFRESH_S = 0.5
REPORT_INTERVAL_S = 1.0
TOP = 6
"""Operators shown per rank, fewer where a terminal is too low for all ranks."""
RECORDS = "records"
SLOW_FACTOR = 1.3
LONGEST_TEMPORARY_DIRECTORY = 60
"""Bytes; below a longer one the socket's path would not fit."""

RANKS = Option(
    "ranks",
    "--ranks",
    "Simulated ranks.",
    whole_number,
    default=4,
    minimum=1,
    maximum=64,
    metavar="N",
)
SECONDS = Option(
    "seconds",
    "--seconds",
    "How long to monitor.",
    real_number,
    default=15.0,
    minimum=1.0,
    maximum=3600.0,
    metavar="SECONDS",
)

REAL_JOB = """\
The same on a real job:
  msmon-daemon &                          on each node
  msmon run torchrun … train.py           the job, with any launcher
  msmon npu-monitor start --kind Kernel,Communication --report-interval-s 1
  msmon status
  msmon npu-monitor stop"""


@click.command()
@option_from(RANKS)
@option_from(SECONDS)
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="Keep windows, records and logs in this directory.",
)
def demo(ranks: int | None, seconds: float | None, keep: Path | None) -> None:
    """Run a private daemon and simulated ranks, and show their operators live.

    One rank is slow. Nothing outside a temporary directory is touched, and all of it is
    gone afterwards.

    \b
    Eight ranks for half a minute, and what they wrote to look at afterwards:
      msmon demo --ranks 8 --seconds 30 --keep ./demo
    """
    rank_count = RANKS.default if ranks is None else ranks
    duration_s = SECONDS.default if seconds is None else seconds
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    with ended_by_signals(), _temporary_directory() as private:
        data = _made(keep) if keep else private
        console.print(f"Starting a private daemon and {rank_count} simulated ranks ...")
        simulation = simulation_text(rank_count)
        with Cluster(private, data, rank_count, simulation, STEP_S) as cluster:
            _require_ok(cluster.request(_start_request(data / RECORDS if keep else None)))
            with Feed({"demo": cluster.endpoint}) as feed:
                watch = DemoWatch(feed, round(REPORT_INTERVAL_S * 1e9))
                _watch(console, cluster, watch, rank_count, duration_s)
                stopped = cluster.request(MonitorRequest(MonitorAction.STOP))
                watch.take_the_rest()
        _require_ok(stopped)
        _summarise(console, watch, stopped, data if keep else None)


def simulation_text(ranks: int) -> str:
    """Return MSMON_SIMULATE for the demo: a fixed seed, and one rank slow where there are two."""
    slow = f",slow_rank={min(2, ranks - 1)},slow_factor={SLOW_FACTOR}" if ranks > 1 else ""
    return f"seed=7,step_ms={STEP_S * 1000:.0f}{slow}"


def _start_request(records: Path | None) -> MonitorRequest:
    fields: dict[str, Any] = {
        "kinds": "Kernel,Communication",
        "report_interval_s": REPORT_INTERVAL_S,
    }
    if records is not None:
        fields["log_file"] = str(records)
    return MonitorRequest(MonitorAction.START, fields)


def _require_ok(reply: Reply) -> None:
    if reply.outcome != Outcome.OK:
        failed = [row.text for row in reply.answer_rows if not row.ok]
        raise MsmonError(reply.text or "; ".join(failed) or reply.outcome, reply.next_step)


def _watch(
    console: Console, cluster: Cluster, watch: DemoWatch, ranks: int, duration_s: float
) -> None:
    """Follow the windows for ``duration_s``; on a terminal the table is drawn live."""
    end = time.monotonic() + duration_s
    limit = max(2, (console.height - 4) // ranks)
    live = Live(console=console, auto_refresh=False, transient=True)
    drawn = sys.stdout.isatty()  # rich would also draw where FORCE_COLOR is set
    with live if drawn else contextlib.nullcontext():
        while (left_s := end - time.monotonic()) > 0:
            time.sleep(min(REFRESH_S, left_s))
            cluster.check()
            watch.take()
            totals = watch.totals() if drawn else {}
            if totals:
                title = f"Top operators per rank, {max(0.0, left_s):.0f} s to go (Ctrl-C ends)"
                table = operator_table(totals, watch.slow_ranks, min(limit, TOP), title)
                live.update(table, refresh=True)


def _summarise(console: Console, watch: DemoWatch, stopped: Reply, keep: Path | None) -> None:
    console.print()
    console.print(operator_table(watch.totals(), watch.slow_ranks, TOP, "Top operators per rank"))
    lines = ["", *watch.verdict_lines(), ""]
    lines += [
        f"Rank {row.rank}: {sentence(row.text)}" for row in in_rank_order(stopped.answer_rows)
    ]
    if keep is None:
        lines += ["The data was temporary; --keep DIRECTORY keeps windows and records."]
    else:
        lines += [f"Windows: {keep / METRICS_FILE}", f"Records: {keep / RECORDS}"]
    click.echo("\n".join([*lines, "", REAL_JOB]))


def _made(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--keep: can't make {directory}: {error.strerror}") from None
    return directory.resolve()


@contextlib.contextmanager
def _temporary_directory() -> Iterator[Path]:
    too_long = len(os.fsencode(tempfile.gettempdir())) > LONGEST_TEMPORARY_DIRECTORY
    path = Path(tempfile.mkdtemp(prefix="msmon-demo-", dir="/tmp" if too_long else None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)

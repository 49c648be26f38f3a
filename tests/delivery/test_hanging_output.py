"""An output whose process hangs keeps neither records nor acknowledgements from another one."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from exports import JsonLines, databases
from job import ALL_KINDS, Job, wait_for

RECORDS_PER_S = 50_000
"""So many that 8 MiB wait for the hanging output within seconds."""


def test_a_hanging_output_is_left_behind_and_counted_until_it_goes_on() -> None:
    directory = Path(tempfile.mkdtemp(prefix="msmon-")).resolve()
    lines, exports = directory / "lines", directory / "db"
    with Job(directory, 1, f"rate={RECORDS_PER_S},step_ms=100,preload=1") as job:
        job.daemon_options = ("--heartbeat-s", "0.5", "--sink", f"jsonl:path={lines}")
        job.start_daemon()
        job.start_ranks()
        export = {"log_file": str(exports), "export_type": "DB"}
        started = job.command("start", kinds=ALL_KINDS, report_interval_s=1.0, **export)
        assert started.outcome == "ok", started
        pid = job.ranks[0].pid

        def written(name: str) -> int:
            rows = {row.name: row for row in job.daemon_row().sinks}
            return sum(rows[name].written.values())

        wait_for(lambda: written("sqlite") and written("jsonl"), "records in both outputs")
        hanging = job.output_process(".db")
        hanging.suspend()
        drops = wait_for(lambda: job.rows()[pid].drops, "an output that is left behind")
        assert set(drops) == {"disk"}
        assert any("not answered" in sink.problem for sink in job.daemon_row().sinks)
        before = written("jsonl")
        wait_for(lambda: written("jsonl") > before + RECORDS_PER_S, "the healthy output goes on")
        hanging.resume()
        wait_for(lambda: not job.rows()[pid].drops, "the hanging output has caught up")
        stopped = job.command("stop")
        assert stopped.outcome == "ok", stopped
        job.await_states("idle")
        database = databases(exports)[pid]
        assert database.counts() == job.ranks[0].recorded()
        assert database.gaps() == []
        records = JsonLines(lines.glob("*.jsonl"), pid).counts()
        assert records["Kernel"] == database.counts()["Kernel"]
    shutil.rmtree(directory)

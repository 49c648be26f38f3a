"""``msmon demo``, whole: real processes, and a table that agrees with the simulation."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from msmon.commands.demo.command import SLOW_FACTOR, simulation_text
from msmon.records.collectives import operation_of
from msmon.settings.simulation import SimulatedRank, parse_simulation
from msmon.simulation.step import expected_step

DEMO = [sys.executable, "-m", "msmon.commands.main", "demo"]
ROW = re.compile(
    r"(?P<rank>\d+(?: slow)?)?\s+(?P<name>[A-Za-z]\w+)\s+(?P<count>\d+)\s+(?P<total_ms>[\d.]+)"
    r"\s+(?P<mean_us>[\d.]+)\s+(?P<p95_us>[\d.]+)\s+(?P<share>[\d.]+)%\s*"
)


@pytest.fixture
def environ(tmp_path_factory):
    """The environment of a user whose temporary files all lie in one short directory."""
    directory = tmp_path_factory.mktemp("t")
    return {**os.environ, "TMPDIR": str(directory), "RANK": "5", "SLURM_JOB_ID": "7"}


def printed_rows(text: str) -> dict[tuple[int, str], dict[str, float]]:
    """Return (rank, operator) → figures of the printed table."""
    rows: dict[tuple[int, str], dict[str, float]] = {}
    rank = -1
    for line in text.splitlines():
        found = ROW.fullmatch(line)
        if not found:
            continue
        rank = int((found["rank"] or str(rank)).split()[0])
        figures = ("count", "total_ms", "mean_us", "p95_us", "share")
        rows[rank, found["name"]] = {figure: float(found[figure]) for figure in figures}
    return rows


def test_the_table_agrees_with_what_the_simulation_was_told(environ, tmp_path):
    done = subprocess.run(
        [*DEMO, "--ranks", "2", "--seconds", "3"],
        env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=40, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    rows = printed_rows(done.stdout)
    assert {rank for rank, _ in rows} == {0, 1}
    options = parse_simulation(simulation_text(2))
    for rank in (0, 1):
        expected = {
            operation_of(name) if kind.name == "Communication" else name: totals
            for (kind, _, name), totals in expected_step(
                options, SimulatedRank(rank, rank, 2)
            ).items()
            if kind.name in ("Kernel", "Communication")
        }
        steps = [
            figures["count"] / expected[name].count
            for (of, name), figures in rows.items()
            if of == rank
        ]
        assert len(steps) >= 4
        assert max(steps) - min(steps) <= 1.0  # the session began and ended within a step
        for (of, name), figures in rows.items():
            if of == rank:
                assert figures["mean_us"] == pytest.approx(expected[name].mean_ns / 1e3, rel=0.05)
                assert figures["total_ms"] == pytest.approx(
                    figures["count"] * figures["mean_us"] / 1e3, rel=0.01, abs=0.1
                )
                assert figures["p95_us"] >= 0.9 * figures["mean_us"]
    matmul = [rows[rank, "MatMulV3"]["mean_us"] for rank in (0, 1)]
    assert matmul[1] / matmul[0] == pytest.approx(SLOW_FACTOR, rel=0.05)
    assert "too short for a verdict" in done.stdout
    assert os.listdir(environ["TMPDIR"]) == []
    assert os.listdir(tmp_path) == []


def test_ctrl_c_leaves_no_process_and_no_file(environ, tmp_path):
    demo = subprocess.Popen(
        [*DEMO, "--ranks", "2", "--seconds", "60"],
        env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with demo:
        deadline = time.monotonic() + 20
        children: list[psutil.Process] = []
        while len(children) < 3 and time.monotonic() < deadline:
            children = psutil.Process(demo.pid).children(recursive=True)
            time.sleep(0.05)
        assert len(children) == 3
        demo.send_signal(signal.SIGINT)
        _, error = demo.communicate(timeout=20)
    assert (demo.returncode, error.strip()) == (130, b"")
    assert not [child for child in children if child.is_running()]
    assert os.listdir(environ["TMPDIR"]) == []


def test_kept_data_stays(environ, tmp_path):
    done = subprocess.run(
        [*DEMO, "--ranks", "1", "--seconds", "1.5", "--keep", "kept data"],
        env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=40, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    kept = tmp_path / "kept data"
    assert (kept / "metrics.jsonl").stat().st_size > 0
    assert list((kept / "records").iterdir())
    assert os.listdir(environ["TMPDIR"]) == []


@pytest.mark.parametrize("arguments", [["--ranks", "0"], ["--seconds", "nan"], ["--ranks", "x"]])
def test_wrong_options_end_with_2(run, arguments):
    code, _, err = run("demo", *arguments)
    assert code == 2
    assert arguments[0] in err


def test_a_place_that_can_not_be_kept_is_said_so(run, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = run("demo", "--keep", str(tmp_path / "file" / "below"))
    assert code == 2
    assert "--keep" in err

"""Who is slow in a recorded job."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.pipeline_job import BASE_NS, PipelineJob

from msmon.analysis.slow_ranks import SlowRanks, slow_ranks
from msmon.analysis.steps import StepSource
from msmon.commands.main import main
from msmon.conversion.sources.search import find_sources
from msmon.insight.verdict import Fault

HOUR_NS = 3_600_000_000_000


def judged(directory: Path) -> SlowRanks:
    return slow_ranks(find_sources([directory]))


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("factor", [1.15, 2.5])
def test_a_slow_rank_is_named_and_no_other(tmp_path, rank, factor):
    answer = judged(PipelineJob(slow={rank: factor}).write(tmp_path))
    (verdict,) = answer.verdicts
    assert (verdict.kind, verdict.ranks) == (Fault.SLOW_DEVICE, (rank,))
    assert verdict.effect == pytest.approx(factor, rel=0.02)
    assert verdict.cost_percent > 1
    assert verdict.since_step == 0


def test_a_rank_that_is_less_slow_than_its_noise_allows_is_not_blamed(tmp_path):
    assert judged(PipelineJob(slow={1: 1.05}).write(tmp_path)).verdicts == []


def test_a_long_stage_names_the_stage_and_no_rank(tmp_path):
    answer = judged(PipelineJob(stages=3, long_stages={2: 1.6}).write(tmp_path))
    (verdict,) = answer.verdicts
    assert (verdict.kind, verdict.ranks) == (Fault.STAGE_IMBALANCE, ())
    assert verdict.position == (6, 7, 8)


def test_a_slow_rank_in_a_job_with_a_long_stage(tmp_path):
    answer = judged(PipelineJob(stages=3, long_stages={2: 1.6}, slow={4: 1.3}).write(tmp_path))
    found = {(verdict.kind, verdict.ranks) for verdict in answer.verdicts + answer.minor}
    assert found == {(Fault.STAGE_IMBALANCE, ()), (Fault.SLOW_DEVICE, (4,))}


def test_a_healthy_job_gives_no_verdict(tmp_path):
    answer = judged(PipelineJob().write(tmp_path))
    assert answer.verdicts == []
    assert answer.ranks == (0, 1, 2, 3, 4, 5)
    assert (answer.steps_from, answer.steps) == (StepSource.MARKERS, 40)


def test_steps_are_inferred_where_there_are_no_markers(tmp_path):
    answer = judged(PipelineJob(slow={2: 1.5}, markers=False).write(tmp_path))
    assert answer.steps_from == StepSource.INFERRED
    assert [verdict.ranks for verdict in answer.verdicts] == [(2,)]


def test_a_rank_without_a_file_is_named(tmp_path):
    directory = PipelineJob(slow={0: 1.5}).write(tmp_path)
    next(directory.glob("*_1.jsonl")).unlink()
    answer = judged(directory)
    assert (1,) in [one.ranks for one in answer.abstained]
    (verdict,) = answer.verdicts
    assert verdict.ranks == (0,)
    assert "not seen: ranks 1; one of them may be later still" in verdict.evidence


def test_steps_that_come_again_after_a_restart_count_once_and_are_told(tmp_path):
    first = PipelineJob(slow={0: 1.5}).write(tmp_path)
    for path in list(first.iterdir()):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line["startNs"] += HOUR_NS
            line["endNs"] += HOUR_NS
        after_restart = path.with_name(path.name.replace("msmonitor_1", "msmonitor_2"))
        after_restart.write_text("".join(json.dumps(line) + "\n" for line in lines))
    answer = judged(first)
    assert answer.steps == 40
    assert answer.problems == [
        "240 steps came again, as after a restart of the job; each number counts once"
    ]
    (verdict,) = answer.verdicts
    assert verdict.effect == pytest.approx(1.5, rel=0.02)


def test_a_slow_phase_is_over_when_it_ended_and_not_when_that_was_sure(tmp_path):
    slow = PipelineJob(slow={0: 1.5}, steps=80).write(tmp_path / "slow")
    well = PipelineJob(steps=320).write(tmp_path / "well")
    for path in slow.iterdir():
        after = (well / path.name).read_text().splitlines()
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        offset_ns = max(line["endNs"] for line in lines) - BASE_NS
        for line in map(json.loads, after):
            line["startNs"] += offset_ns
            line["endNs"] += offset_ns
            if line["kind"] == "Marker":
                line["name"] = f"step {int(line['name'].split()[1]) + 80}"
                line["id"] += 80
            lines.append(line)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (verdict,) = judged(slow).verdicts
    assert verdict.ranks == (0,)
    assert verdict.until_ns == pytest.approx(BASE_NS + offset_ns, abs=15_000_000_000)


def test_what_can_not_be_judged_is_counted(tmp_path):
    directory = PipelineJob().write(tmp_path)
    path = next(directory.glob("*_2.jsonl"))
    line = json.loads(path.read_text().splitlines()[0])
    with path.open("a") as file:
        file.write(json.dumps({**line, "endNs": 2**64 - 1}) + "\n{torn\n")
    problems = judged(directory).problems
    assert "rank 2: 1 damaged parts were skipped" in problems
    assert "rank 2: 1 records were left out, as their times are no times of a clock" in problems


def test_more_ranks_than_open_files(tmp_path):
    directory = PipelineJob(stages=2, data_parallel=16, steps=30).write(tmp_path)
    command = [sys.executable, "-m", "msmon.commands.main", "analyze", "slow-ranks", str(directory)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24)),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ranks 0-31; 30 steps")


def test_a_full_disk_for_temporary_files_is_an_error_that_says_so(tmp_path):
    directory = PipelineJob().write(tmp_path)
    command = [sys.executable, "-m", "msmon.commands.main", "analyze", "slow-ranks", str(directory)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        # Python would leave a compiled file of 4,000 bytes for others to stumble over
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, 4_000)),
    )
    assert done.returncode == 1
    assert "set TMPDIR to a directory that has it" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_says_it_in_a_sentence_and_in_json(tmp_path, capsys):
    directory = PipelineJob(slow={3: 1.4}).write(tmp_path)
    assert main(["analyze", "slow-ranks", str(directory)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "slow device: rank 3 (NPU 3) needs 1.4" in text
    assert "trace: msmon nputrace --rank 3," in text
    assert main(["analyze", "slow-ranks", str(directory), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [verdict["ranks"] for verdict in answer["verdicts"]] == [[3]]


@pytest.mark.parametrize(
    ("content", "code", "text"),
    [(None, 2, "does not exist"), ("no records\n", 1, "no records"), ("", 1, "empty")],
)
def test_what_can_not_be_read_is_said(tmp_path, capsys, content, code, text):
    path = tmp_path / "msmonitor_1_20260101000000000_0.jsonl"
    if content is not None:
        path.write_text(content)
    assert main(["analyze", "slow-ranks", str(path)]) == code
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    assert printed.err.startswith("msmon: ")
    assert text in printed.err

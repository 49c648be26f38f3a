"""Who is slow in a recorded job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fixtures.pipeline_job import PipelineJob

from msmon.analysis.slow_ranks import SlowRanks, slow_ranks
from msmon.analysis.steps import StepSource
from msmon.commands.main import main
from msmon.conversion.sources.search import find_sources
from msmon.insight.verdict import Fault


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
    assert {(verdict.kind, verdict.ranks) for verdict in answer.verdicts} >= {
        (Fault.STAGE_IMBALANCE, ())
    }
    assert {verdict.ranks for verdict in answer.verdicts} <= {(), (4,)}


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
    assert [verdict.ranks for verdict in answer.verdicts] == [(0,)]


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

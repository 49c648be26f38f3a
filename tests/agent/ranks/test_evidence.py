"""Which processes are ranks: launchers' variables, inherited ones, and marks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from msmon.agent.ranks import evidence as ranks

PYTHON = ["python", "train.py"]
TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("environ", "asked"),
    [
        ({}, False),
        ({"MSMONITOR_USE_DAEMON": "1"}, True),
        ({"MSMONITOR_USE_DAEMON": "0"}, False),
        ({"MSMONITOR_USE_DAEMON": ""}, False),
        ({"MSMONITOR_USE_DAEMON": "false"}, False),
        ({"MSMONITOR_USE_DAEMON": "0", "KINETO_USE_DAEMON": "1"}, False),
        ({"MSMONITOR_USE_DAEMON": "", "KINETO_USE_DAEMON": "1"}, True),
        ({"KINETO_USE_DAEMON": "1"}, True),
    ],
)
def test_when_the_agent_is_asked_for(environ, asked):
    assert ranks.is_asked_for(environ) == asked


def test_a_local_rank_alone_is_a_number():
    assert ranks.is_rank({"LOCAL_RANK": "0"})
    assert not ranks.is_rank({"WORLD_SIZE": "8"})


@pytest.mark.parametrize(
    "environ",
    [
        TORCHRUN,
        {"RANK_ID": "4", "RANK_SIZE": "16"},
        {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
        {"SLURM_PROCID": "7", "SLURM_LOCALID": "3", "SLURM_STEP_TASKS_PER_NODE": "8(x2)"},
    ],
)
def test_a_process_with_a_place_on_its_node_is_evidently_a_rank(environ):
    assert ranks.is_evident(environ, PYTHON)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "pod-0"},  # a PyTorchJob's torchrun
        {"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x4)"},
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
        {"LOCAL_WORLD_SIZE": "8"},
        {"RANK": "zero", "LOCAL_RANK": "0"},
    ],
)
def test_one_process_per_node_may_be_a_launcher(environ):
    assert not ranks.is_evident(environ, ["python", "-m", "torch.distributed.run", "train.py"])


def test_children_of_multiprocessing_are_known_by_what_they_run():
    assert not ranks.is_multiprocessing_child(["python", "-c", "import multiprocessing"])
    child = ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(pipe=5)"]
    assert ranks.is_multiprocessing_child([*child, "--multiprocessing-fork"])
    assert not ranks.is_evident(TORCHRUN, child)


CHILD = """
import os, sys
from msmon.agent.ranks import evidence as ranks
print(ranks.belongs_to_a_rank(os.environ))
"""


def in_child(environ: dict[str, str]) -> bool:
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip() == "True"


def test_a_child_inherits_the_mark_but_not_the_rank():
    environ = dict(TORCHRUN)
    ranks.mark(environ)
    assert in_child(environ)
    assert in_child({**environ, "MASTER_PORT": "1"})
    assert not in_child(TORCHRUN)


def test_the_marked_process_itself_stays_a_rank():
    environ = dict(TORCHRUN)
    ranks.mark(environ)
    assert not ranks.belongs_to_a_rank(environ)


def test_a_launcher_below_a_rank_numbers_anew():
    environ = dict(TORCHRUN)
    ranks.mark(environ)
    assert not in_child({**environ, "RANK": "0", "LOCAL_RANK": "0"})


def test_a_broken_mark_marks_nothing():
    assert not ranks.belongs_to_a_rank({ranks.MARK: "1:2"})
    assert not ranks.belongs_to_a_rank({ranks.MARK: "rubbish"})


def test_launches_are_told_apart_by_job_or_meeting_point():
    first = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}
    second = {**first, "MASTER_PORT": "29501"}
    assert ranks.launch(first) == ranks.launch({**first, "RANK": "1"})
    assert ranks.launch(first) != ranks.launch(second)
    assert ranks.launch({"SLURM_JOB_ID": "123_4"}) != ranks.launch({"SLURM_JOB_ID": "123_5"})
    assert ranks.launch({"TORCHELASTIC_RUN_ID": "none", "RANK": "0"}) == ""

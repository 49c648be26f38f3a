"""Who this process is, from the environment and /proc."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

from msmon.agent.ranks import evidence as ranks
from msmon.agent.ranks import this_process as process
from msmon.bus.codec import encode
from msmon.bus.messages import Hello


def test_this_process_is_identified_by_start_time_and_user():
    found = process.current_process({})
    assert found.pid == os.getpid()
    assert found.uid == os.getuid()
    assert found.start_time > 0
    assert found.rank == -1
    assert found.job_id == ""
    assert found.key == process.current_process({"RANK": "1"}).key


@pytest.mark.parametrize(
    ("environ", "rank", "local_rank", "world_size"),
    [
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, 3, 1, 8),
        ({"RANK_ID": "4", "RANK_SIZE": "16"}, 4, -1, 16),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, 2, 0, 0),
        ({"SLURM_PROCID": "7", "SLURM_LOCALID": "3", "SLURM_NTASKS": "9"}, 7, 3, 9),
        ({"RANK": "", "SLURM_PROCID": "5"}, 5, -1, 0),
        ({"RANK": "zero"}, -1, -1, 0),
        ({"RANK": "-1"}, -1, -1, 0),
    ],
)
def test_rank_of_every_launcher(environ, rank, local_rank, world_size):
    found = process.current_process(environ)
    assert (found.rank, found.local_rank, found.world_size) == (rank, local_rank, world_size)
    assert ranks.is_rank(environ) == (rank >= 0)


@pytest.mark.parametrize("job_id", ["123_4", "123.batch", "123"])
def test_job_id_stays_text(job_id):
    assert process.current_process({"SLURM_JOB_ID": job_id}).job_id == job_id


def test_job_id_of_torchrun_without_one_is_empty():
    assert process.current_process({"TORCHELASTIC_RUN_ID": "none"}).job_id == ""
    assert process.current_process({"SLURM_JOB_ID": "", "LSB_JOBID": "9"}).job_id == "9"


def test_framework_is_what_is_imported_already(monkeypatch):
    for name in ("torch_npu", "mindspore", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert process.framework() == ""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert process.framework() == "torch"
    monkeypatch.setitem(sys.modules, "torch_npu", ModuleType("torch_npu"))
    assert process.framework() == "torch_npu"


def test_arguments_of_the_command_are_not_told(monkeypatch):
    texts = {"/proc/self/cmdline": "python\0train.py\0--token\0secret\0"}
    monkeypatch.setattr(ranks, "_read", lambda path: texts.get(path, ""))
    found = process.current_process({})
    assert found.command == "python train.py"
    assert found.start_time == 0


def test_container_id_comes_from_the_control_group(monkeypatch):
    identity = "ab" * 32
    texts = {"/proc/self/cgroup": f"0::/kubepods/pod1/cri-containerd-{identity}.scope\n"}
    monkeypatch.setattr(process, "_read", lambda path: texts.get(path, ""))
    assert process.current_process({}).container == identity


@pytest.mark.parametrize("number", ["9" * 10, str(2**64), "1" * 5000, "-3", "0x1", ""])
def test_a_number_that_is_none_is_as_if_not_set(number):
    """What identifies a process must fit into a message."""
    found = process.current_process({"RANK": number, "WORLD_SIZE": number, "LOCAL_RANK": number})
    assert (found.rank, found.local_rank, found.world_size) == (-1, -1, 0)


def test_a_job_id_of_any_length_and_bytes_fits_into_a_message():
    found = process.current_process({"SLURM_JOB_ID": "\udcff" * 70_000})
    assert 0 < len(found.job_id) <= 256
    assert encode(Hello("1", "agent", found))


def test_the_rank_that_only_torch_distributed_knows(monkeypatch):
    module = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 5,
        get_world_size=lambda: 8,
    )
    before = process.current_process({})
    monkeypatch.setitem(sys.modules, "torch.distributed", module)
    after = process.with_framework(before)
    assert (before.rank, after.rank, after.world_size) == (-1, 5, 8)
    numbered = process.current_process({"RANK": "3", "WORLD_SIZE": "4"})
    assert (numbered.rank, numbered.world_size) == (3, 4)


def test_numbers_that_a_child_has_inherited_are_not_its_own(monkeypatch):
    environ = {"RANK": "0", "WORLD_SIZE": "1", ranks.MARK: ""}
    ranks.mark(environ)
    environ[ranks.MARK] = environ[ranks.MARK].replace(f"{os.getpid()}:", "1:", 1)
    module = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 2,
        get_world_size=lambda: 4,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", module)
    found = process.current_process(environ)
    assert (found.rank, found.world_size) == (2, 4)
    assert found.started_by.startswith("1:")


@pytest.mark.parametrize("wrong", [SimpleNamespace(), SimpleNamespace(is_available=lambda: False)])
def test_a_torch_distributed_that_can_not_tell_is_passed_over(monkeypatch, wrong):
    monkeypatch.setitem(sys.modules, "torch.distributed", wrong)
    assert process.current_process({}).rank == -1

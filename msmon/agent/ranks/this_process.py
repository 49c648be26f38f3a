"""Who this process is: rank, job, container, framework.

It is read from the environment, from /proc/self, and from torch.distributed where the job has
initialised it. A value that can't be read stays unknown: the agent must start all the same.
"""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from msmon.agent.ranks import evidence as ranks
from msmon.sessions import UNKNOWN_RANK, ProcessInfo

DEVICE_VARIABLES = ("ASCEND_DEVICE_ID", "DEVICE_ID")
_FRAMEWORKS = ("torch_npu", "mindspore", "torch")
_CONTAINER_ID = re.compile(r"\b[0-9a-f]{64}\b")
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
_MAX_COMMAND_CHARACTERS = 200
MAX_JOB_ID_CHARACTERS = 256


def current_process(environ: Mapping[str, str] = os.environ) -> ProcessInfo:
    """Return what is known about this process."""
    local_rank = ranks.first_number(environ, ranks.LOCAL_RANK_VARIABLES, UNKNOWN_RANK)
    process = ProcessInfo(
        host=socket.gethostname(),
        pid=os.getpid(),
        start_time=ranks.start_time(),
        container=_container(),
        rank=ranks.first_number(environ, ranks.RANK_VARIABLES, UNKNOWN_RANK),
        local_rank=local_rank,
        world_size=ranks.first_number(environ, ranks.WORLD_SIZE_VARIABLES, 0),
        device=ranks.first_number(environ, DEVICE_VARIABLES, local_rank),
        job_id=_job_id(environ),
        uid=os.getuid(),
        command=_command(),
        launch=ranks.launch(environ),
        local_world_size=ranks.local_size(environ),
        started_by=ranks.started_by(environ),
    )
    if process.started_by and ranks.belongs_to_a_rank(environ):
        # These numbers are of the rank that has started this process. The framework knows better.
        rank, world_size = _torch_rank()
        if rank >= 0:
            process = dataclasses.replace(process, rank=rank, world_size=world_size)
    return with_framework(process)


def with_framework(process: ProcessInfo) -> ProcessInfo:
    """Return ``process`` with what its framework, where it is imported by now, knows of it.

    A rank that no launcher has numbered may be given to ``init_process_group(rank=…)`` alone.
    """
    process = dataclasses.replace(process, framework=framework())
    if process.rank >= 0:
        return process
    rank, world_size = _torch_rank()
    return dataclasses.replace(
        process, rank=rank, world_size=world_size if rank >= 0 else process.world_size
    )


def _torch_rank() -> tuple[int, int]:
    """Return rank and world size of torch.distributed; (-1, 0) before it is initialised.

    It is asked only where the job has imported it. All it does is to look into its own objects.
    """
    module = sys.modules.get("torch.distributed")
    try:
        if module is None or not module.is_available() or not module.is_initialized():
            return UNKNOWN_RANK, 0
        return int(module.get_rank()), int(module.get_world_size())
    except Exception:  # noqa: BLE001 - another version, half imported, or it ends at this moment
        return UNKNOWN_RANK, 0


def framework() -> str:
    """Return the framework that this process has imported, or the empty text."""
    return next((name for name in _FRAMEWORKS if name in sys.modules), "")


def _job_id(environ: Mapping[str, str]) -> str:
    candidates = (environ.get(name, "").strip() for name in ranks.JOB_VARIABLES)
    job_id = next((text for text in candidates if text.lower() not in ranks.NO_JOB), "")
    return job_id[:MAX_JOB_ID_CHARACTERS]


def _container() -> str:
    match = _CONTAINER_ID.search(_read("/proc/self/cgroup"))
    if match:
        return match[0]
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    return "" if namespace == _INITIAL_PID_NAMESPACE else namespace


def _command() -> str:
    """Return program and script; further arguments may be secret."""
    words = ranks.command_line()[:2]
    return " ".join(word for word in words if word)[:_MAX_COMMAND_CHARACTERS]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""

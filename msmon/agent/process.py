"""Who this process is: rank, job, container, framework.

Everything is read from the environment and from /proc of this very process; a value
that can't be read stays unknown.
"""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from msmon.sessions import UNKNOWN_RANK, ProcessInfo

RANK_VARIABLES = (
    "RANK",  # torchrun, MindSpore's msrun
    "RANK_ID",  # rank table launches
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "SLURM_PROCID",
)
LOCAL_RANK_VARIABLES = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "SLURM_LOCALID",
)
WORLD_SIZE_VARIABLES = (
    "WORLD_SIZE",
    "RANK_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "SLURM_NTASKS",
)
DEVICE_VARIABLES = ("ASCEND_DEVICE_ID", "DEVICE_ID")
JOB_VARIABLES = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "LSB_JOBID", "PBS_JOBID", "PMIX_NAMESPACE")

_FRAMEWORKS = ("torch_npu", "mindspore", "torch")
_NO_JOB = {"", "none"}
"""torchrun sets TORCHELASTIC_RUN_ID to "none" where no --rdzv-id was given."""
_CONTAINER_ID = re.compile(r"\b[0-9a-f]{64}\b")
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
_MAX_COMMAND_CHARACTERS = 200
_OFF = {"", "0", "false", "no", "off"}


def is_on(value: str | None) -> bool:
    """Whether the value of a switch in the environment means on."""
    return value is not None and value.strip().lower() not in _OFF


def is_rank(environ: Mapping[str, str]) -> bool:
    """Whether a launcher started this process as a rank of a job."""
    names = (*RANK_VARIABLES, *LOCAL_RANK_VARIABLES)
    return _first_number(environ, names, UNKNOWN_RANK) >= 0


def is_asked_for(environ: Mapping[str, str]) -> bool:
    """Whether the environment asks for the agent: MSMONITOR_USE_DAEMON, else KINETO_USE_DAEMON."""
    return is_on(environ.get("MSMONITOR_USE_DAEMON", environ.get("KINETO_USE_DAEMON")))


def is_worker() -> bool:
    """Whether this is a daemonic child of multiprocessing, say a DataLoader worker."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    return multiprocessing is not None and bool(multiprocessing.current_process().daemon)


def current_process(environ: Mapping[str, str] = os.environ) -> ProcessInfo:
    """Return what is known about this process."""
    local_rank = _first_number(environ, LOCAL_RANK_VARIABLES, UNKNOWN_RANK)
    return ProcessInfo(
        host=socket.gethostname(),
        pid=os.getpid(),
        start_time=_start_time(),
        container=_container(),
        rank=_first_number(environ, RANK_VARIABLES, UNKNOWN_RANK),
        local_rank=local_rank,
        world_size=_first_number(environ, WORLD_SIZE_VARIABLES, 0),
        device=_first_number(environ, DEVICE_VARIABLES, local_rank),
        job_id=_job_id(environ),
        framework=framework(),
        uid=os.getuid(),
        command=_command(),
    )


def with_framework(process: ProcessInfo) -> ProcessInfo:
    """Return ``process`` with the framework that is imported by now."""
    return dataclasses.replace(process, framework=framework())


def framework() -> str:
    """Return the framework that this process has imported, or the empty text."""
    return next((name for name in _FRAMEWORKS if name in sys.modules), "")


def _first_number(environ: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    for name in names:
        text = environ.get(name, "").strip()
        if text.isdecimal():
            return int(text)
    return default


def _job_id(environ: Mapping[str, str]) -> str:
    candidates = (environ.get(name, "").strip() for name in JOB_VARIABLES)
    return next((text for text in candidates if text.lower() not in _NO_JOB), "")


def _start_time() -> int:
    # the command in parentheses may hold blanks and parentheses itself (proc(5))
    fields = _read("/proc/self/stat").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 else 0


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
    words = _read("/proc/self/cmdline").split("\0")[:2]
    return " ".join(word for word in words if word)[:_MAX_COMMAND_CHARACTERS]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""

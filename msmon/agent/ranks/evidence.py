"""Decides which processes are ranks, from the environment and the command line.

A rank trains or serves; there is one per device. Launchers, DataLoader workers, compile
workers and other children run Python in nearly the same environment. The name of a program
tells nothing, because a site may use its own launcher. These rules tell them apart:

* A launcher that numbers its processes also gives each its place on the node, or starts
  several there. Such a process is a rank from the start.
* A number alone proves nothing: schedulers and Kubernetes operators number the *launcher*
  of each node that way (``srun torchrun``, the pods of a PyTorchJob). Such a process, like
  one without any number, becomes a rank when it first trains: at its first step, or when
  its framework calls in.
* A rank leaves a mark in its environment when its agent starts. A process that inherits the
  mark together with the rank's variables was started by that rank. It is no rank, unless it
  trains: from its third step on it is one. The daemon then decides which of the two commands
  are for (``Registry.trainers``).

Examples:

* ``torchrun --nproc-per-node 8 train.py``: the launcher has no RANK and makes no step. The
  eight children have RANK and LOCAL_RANK, so each is a rank at once.
* ``srun torchrun …``: the launcher itself has SLURM_PROCID. It makes no step, so it never
  becomes a rank.
* ``python train.py`` without a launcher: it is a rank from its first step on.
* A DataLoader worker of a rank: it has RANK and the mark of its parent, so it is none.
* A notebook that has called ``msmon.init()`` and starts four processes with ``mp.spawn``: all
  five have the mark, and the four that train are ranks from their third step on.

Only the standard library is imported, because every Python process of a job loads this module.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

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
LOCAL_SIZE_VARIABLES = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_STEP_TASKS_PER_NODE",
)
WORLD_SIZE_VARIABLES = (
    "WORLD_SIZE",
    "RANK_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "SLURM_NTASKS",
)
JOB_VARIABLES = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "LSB_JOBID", "PBS_JOBID", "PMIX_NAMESPACE")
NO_JOB = {"", "none"}
"""torchrun sets TORCHELASTIC_RUN_ID to "none" where no --rdzv-id was given."""
MEETING_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "MS_SCHED_HOST", "MS_SCHED_PORT")
"""Address at which the ranks of a launch find each other."""

MARK = "MSMON_RANK_PROCESS"
"""Set in the environment of a rank: its pid, start time and a digest of its rank variables."""

_started_by: tuple[int, str] = (0, "")
"""Pid of the process that has set a mark, and who had started it. Another pid: a parent's."""

_OFF = {"", "0", "false", "no", "off"}
_MOST_DIGITS = 9
_LEADING_NUMBER = re.compile(rf"\d{{1,{_MOST_DIGITS}}}")


def is_on(value: str | None) -> bool:
    """Whether the value of a switch in the environment means on."""
    return value is not None and value.strip().lower() not in _OFF


def is_asked_for(environ: Mapping[str, str]) -> bool:
    """Whether the environment asks for the agent: MSMONITOR_USE_DAEMON, else KINETO_USE_DAEMON.

    As in torch_npu, any text in the first one, even "0", hides the second.
    """
    return is_on(environ.get("MSMONITOR_USE_DAEMON") or environ.get("KINETO_USE_DAEMON"))


def is_rank(environ: Mapping[str, str]) -> bool:
    """Whether a launcher or scheduler has numbered this process."""
    names = (*RANK_VARIABLES, *LOCAL_RANK_VARIABLES)
    return first_number(environ, names, -1) >= 0


def is_evident(environ: Mapping[str, str], command_line: Sequence[str]) -> bool:
    """Whether this process is certainly a rank, judged before its script has run."""
    if is_multiprocessing_child(command_line) or not is_rank(environ):
        return False
    placed = first_number(environ, ("RANK",), -1) >= 0 <= first_number(environ, ("LOCAL_RANK",), -1)
    by_table = first_number(environ, ("RANK_ID",), -1) >= 0
    return placed or by_table or local_size(environ) > 1


def is_multiprocessing_child(command_line: Sequence[str]) -> bool:
    """Whether the standard library's multiprocessing started this interpreter."""
    code = [text for option, text in zip(command_line, command_line[1:]) if option == "-c"]
    return bool(code) and code[0].startswith("from multiprocessing.")


def local_size(environ: Mapping[str, str]) -> int:
    """Return how many processes the launcher has started on this node; 0: unknown."""
    for name in LOCAL_SIZE_VARIABLES:
        match = _LEADING_NUMBER.match(environ.get(name, "").strip())  # Slurm writes "8(x2)"
        if match:
            return int(match[0])
    return 0


def first_number(environ: Mapping[str, str], names: Sequence[str], default: int) -> int:
    """Return the first of these variables that holds a number of 0 or more."""
    for name in names:
        text = environ.get(name, "").strip()
        if text.isdecimal() and len(text) <= _MOST_DIGITS:
            return int(text)
    return default


def launch(environ: Mapping[str, str]) -> str:
    """Return a text that the ranks of one launch share, and no other launch on this host.

    Empty where nothing in the environment tells launches apart.
    """
    names = (*JOB_VARIABLES, *MEETING_VARIABLES)
    values = {name: environ.get(name, "").strip() for name in names}
    telling = {name: text for name, text in values.items() if text.lower() not in NO_JOB}
    return _digest(telling) if telling else ""


def mark(environ: MutableMapping[str, str]) -> None:
    """Note in the environment, for the children, that this process is a rank."""
    global _started_by
    _started_by = (os.getpid(), started_by(environ))
    environ[MARK] = f"{os.getpid()}:{start_time()}:{_rank_digest(environ)}"


def belongs_to_a_rank(environ: Mapping[str, str]) -> bool:
    """Whether a rank started this process, as a worker or helper, directly or not."""
    pid, _, rest = environ.get(MARK, "").partition(":")
    started, _, digest = rest.partition(":")
    if not digest or digest != _rank_digest(environ):
        return False  # no mark, or a launcher below the rank has numbered this process anew
    return (pid, started) != (str(os.getpid()), str(start_time()))


def started_by(environ: Mapping[str, str]) -> str:
    """Return pid and start time ("12:3456") of the rank that has started this process, or ""."""
    pid, _, rest = environ.get(MARK, "").partition(":")
    started = rest.partition(":")[0]
    if not pid.isdecimal() or not started.isdecimal():
        return ""
    if (pid, started) != (str(os.getpid()), str(start_time())):
        return f"{pid}:{started}"
    marked_pid, former = _started_by
    return former if marked_pid == os.getpid() else ""


def start_time(pid: int | str = "self") -> int:
    """Return when a process started, in clock ticks since boot; 0: unknown."""
    # the command in parentheses may hold blanks and parentheses itself (proc(5))
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 else 0


def command_line() -> list[str]:
    """Return the words of this process's command line."""
    return _read("/proc/self/cmdline").split("\0")


def _rank_digest(environ: Mapping[str, str]) -> str:
    # Only these variables: programs change others, such as MASTER_PORT, while they run.
    names = (*RANK_VARIABLES, *LOCAL_RANK_VARIABLES)
    return _digest({name: environ[name] for name in names if name in environ})


def _digest(values: Mapping[str, str]) -> str:
    import hashlib  # costs ms, and most processes never come here

    text = "\0".join(f"{name}={value}" for name, value in sorted(values.items()))
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""

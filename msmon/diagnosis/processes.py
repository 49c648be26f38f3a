"""Checks of the ranks: which are registered, and why other training processes are not."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msmon.agent.ranks import evidence as ranks
from msmon.bus.endpoints import SOCKET_FILE, client_directories, places_passed_over
from msmon.bus.rows import StatusRow
from msmon.bus.trust import seen_below
from msmon.bus.words import GONE, ProcessState
from msmon.diagnosis.daemon import daemon_process
from msmon.diagnosis.finding import Finding, ok, warn
from msmon.diagnosis.preload import preload_problem
from msmon.diagnosis.proc import FRAMEWORK_PATHS, SeenProcess, own_namespace
from msmon.diagnosis.surroundings import Surroundings

STARTING_S = 15.0
"""A younger process may still import its framework, so its silence means nothing yet."""

LAUNCHERS = (
    "torchrun",
    "torch_npu_run",
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch_npu.distributed.run",
    "torch_npu.distributed.launch",
    "msrun",
    "mpirun",
)


def registered(surroundings: Surroundings) -> Finding:
    """Report the processes that are registered with the daemon, and apart those that are gone.

    A process that can't be monitored says so when it registers, before anybody starts a session.
    """
    check = "ranks"
    reply = surroundings.reply
    if reply is None:
        return warn(check, "not known: no daemon answers", "start msmon-daemon")
    live = [row for row in reply.status_rows if row.state not in GONE]
    gone = [row for row in reply.status_rows if row.state in GONE]
    lines = [_row_line(row) for row in (*live, *gone)]
    count = ", ".join(
        [
            f"{len(live)} registered" if live else "no process is registered",
            *_counts(gone, ProcessState.LOST),
            *_counts(gone, ProcessState.ENDED),
        ]
    )
    if not live:
        remedy = "start the job with: msmon run COMMAND; or call msmon.init() in each rank"
        return warn(check, count, remedy, *lines)
    if any(row.state == ProcessState.LOST for row in gone):
        remedy = "a lost one was killed or cut off; if it should still run, see the job's own log"
        return warn(check, count, remedy, *lines)
    unfit = [row for row in live if row.problem and not row.session_id]
    if unfit:
        remedy = "remove the cause that each one names; what the environment says needs a restart"
        return warn(check, f"{count}, {len(unfit)} of them with a problem", remedy, *lines)
    return ok(check, count, *lines)


def _counts(rows: Sequence[StatusRow], state: ProcessState) -> list[str]:
    number = sum(row.state == state for row in rows)
    return [f"{number} {state}"] if number else []


def _row_line(row: StatusRow) -> str:
    container = f" in {row.container[:20]}" if row.container else ""
    waits = f" for {', '.join(map(str, row.waits_for))}, which train" if row.waits_for else ""
    problem = "" if row.session_id else "; ".join(map(str.strip, row.problem.splitlines()))
    return (
        f"rank {row.rank}: {row.host}:{row.pid}{container}, "
        f"{row.framework or 'no framework'}, {row.state}{waits}{problem and f'; {problem}'}"
    )


def unregistered(surroundings: Surroundings) -> Finding:
    """Report training processes that are not registered, and the reason for each.

    A training process is a Python process that has loaded torch_npu or MindSpore. Launchers
    and the worker processes of a rank load them too, but are no ranks; they are left out.
    """
    check = "unregistered"
    if surroundings.remote:
        return ok(check, "not looked for: the daemon is on another machine")
    training = {process.pid: process for process in surroundings.python_processes}
    training = {pid: process for pid, process in training.items() if process.framework}
    hidden = sum(process.maps is None for process in surroundings.python_processes)
    note = (f"{hidden} Python processes of other users can't be looked into",) if hidden else ()
    reasons = {
        process.pid: _why(process, surroundings)
        for process in training.values()
        if not _is_registered(process, surroundings) and not _is_no_rank(process, training)
    }
    if not reasons:
        return ok(check, f"{len(training)} processes with torch_npu or MindSpore here", *note)
    return warn(
        check,
        f"{len(reasons)} of {len(training)} processes with torch_npu or MindSpore do not appear "
        "in msmon status",
        "see each reason",
        *(
            f"pid {pid} (uid {training[pid].uid}, {training[pid].framework}): {reason}"
            for pid, reason in reasons.items()
        ),
        *note,
    )


def _is_registered(process: SeenProcess, surroundings: Surroundings) -> bool:
    rows = surroundings.reply.status_rows if surroundings.reply else []
    containers = process.containers
    return any(
        row.pid == process.own_pid and (not row.container or row.container in containers)
        for row in rows
    )


def _is_no_rank(process: SeenProcess, training: Mapping[int, SeenProcess]) -> bool:
    """Return whether this is a launcher or a worker process of a rank.

    A child with the same command line as its parent is a worker: only a fork makes such a one.
    """
    command = process.command
    if _is_launcher(process):
        return True
    if ranks.is_multiprocessing_child(command) or ranks.belongs_to_a_rank(process.environ or {}):
        return True
    parent = training.get(process.parent)
    return parent is not None and not _is_launcher(parent) and parent.command == command


def _is_launcher(process: SeenProcess) -> bool:
    words = process.command[:4]
    return any(os.path.basename(word) in LAUNCHERS for word in words)


def _why(process: SeenProcess, surroundings: Surroundings) -> str:
    """Return the most likely reason why a training process is not registered."""
    environ = process.environ
    if environ is None:
        return f"its environment can't be read; run msmon doctor as uid {process.uid} or root"
    for reason in (
        _not_installed(process),
        _not_asked(environ),
        preload_problem(process, environ),
        _closed_door(process, environ, surroundings),
    ):
        if reason:
            return reason
    if time.time() - process.started_s < STARTING_S:
        return "it has just started"
    if ranks.is_evident(environ, process.command):
        return (
            "its agent can't start or does not reach the daemon: see the log below its "
            "MSMONITOR_LOG_PATH, and that msmon-autostart.pth lies beside the package msmon"
        )
    return (
        "no launcher says which rank it is, so it registers with its first step, which has not "
        "come yet; msmon.init() in the script registers it at once"
    )


def _not_installed(process: SeenProcess) -> str:
    """Return the reason if msmon is not installed in the directory that has the framework."""
    part = FRAMEWORK_PATHS[process.framework]
    packages = {
        Path(line.split(maxsplit=5)[5].partition(part)[0])
        for line in (process.maps or "").splitlines()
        if part in line
    }
    for directory in packages:
        seen = process.root / directory.relative_to("/")
        if not seen.is_dir() or any(seen.glob("msmon*")) or any(seen.glob("__editable__*msmon*")):
            return ""
    where = ", ".join(map(str, sorted(packages)))
    return f"msmon is not installed in {where}; install it there and start the job again"


def _not_asked(environ: Mapping[str, str]) -> str:
    """Return the reason if the environment of a process asks for no agent."""
    if ranks.is_asked_for(environ):
        return ""
    return (
        "MSMONITOR_USE_DAEMON=1 was not in its environment when it started, and it has not "
        "called msmon.init(); start it with: msmon run COMMAND"
    )


def _closed_door(
    process: SeenProcess, environ: Mapping[str, str], surroundings: Surroundings
) -> str:
    """Return the reason if a process can't use the local socket.

    It may look elsewhere, not trust the place, or be another user's.
    """
    passed_over = places_passed_over(environ, process.uid, process.root)
    directories = client_directories(environ, process.uid)
    tried = [directory / SOCKET_FILE for directory in directories]
    visible = [
        path
        for path in tried
        if path.parent not in passed_over and seen_below(process.root, path).is_socket()
    ]
    names = " and ".join(map(str, tried))
    if not visible and passed_over:
        return f"its agent passes over where it would look: {'; '.join(passed_over.values())}"
    if not visible:
        own = own_namespace("mnt")
        other = process.namespace("mnt")
        if own and other and own != other:
            return f"{names} is not there in its container; mount that directory into it"
        return f"it looks for the socket {names}, where no daemon listens"
    daemon = daemon_process(surroundings)
    closed = not (visible[0].exists() and visible[0].stat().st_mode & 0o006)
    if daemon is not None and process.uid not in (0, daemon.uid) and closed:
        return (
            f"it runs as uid {process.uid} and the daemon serves uid {daemon.uid} only; start "
            "msmon-daemon with --allow-users everybody, or as that user"
        )
    return ""

"""One row per process, made for the peer that asks.

What a process is told of to everybody: where it runs, which rank it is, what it does, how many
records. Its owner and operators also see what could serve an attacker: command line, settings,
files, directories, ids of sessions and traces, and texts in which such things may stand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from msmon.bus.messages import Status
from msmon.bus.rows import EXPORT_OWNER, AnswerRow, OutputRow, StatusRow, TraceRow
from msmon.bus.words import ProcessState
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.roles import Role
from msmon.daemon.outputs.outputs import Outputs
from msmon.daemon.process import Life, Process
from msmon.daemon.streams.stream import Stream
from msmon.daemon.streams.streams import Streams
from msmon.sessions import Drops, merged_drops, with_known_stages

NOT_SHOWN = "not shown: the process belongs to another user"
NOT_SHOWN_OF_OUTPUT = "it has a problem, which operators of this daemon can see"


def identity(process: Process, peer: Peer) -> dict[str, Any]:
    """Return who a process is: the fields of :class:`ProcessRow`, as far as ``peer`` may know."""
    info = process.info
    return {
        "host": info.host,
        "pid": info.pid,
        "container": info.container,
        "rank": info.rank,
        "local_rank": info.local_rank,
        "world_size": info.world_size,
        "device": info.device,
        "framework": info.framework,
        "job_id": info.job_id,
        "uid": info.uid,
        "command": info.command if peer.may_command(process.peer) else "",
    }


def status_row(
    process: Process,
    peer: Peer,
    streams: Streams,
    outputs: Outputs,
    now_s: float,
    trainers: Sequence[Process] = (),
) -> StatusRow:
    """Return who a process is, what it does, and how much of it arrived.

    ``trainers``: see :meth:`Registry.trainers`.
    """
    status = process.status or Status(ProcessState.UNKNOWN)
    running_id = streams.id_of(process, status.session_id)
    session_id = running_id or process.session_id
    stream = streams.get(session_id) if session_id else None
    alive = process.is_there
    counts = (stream.final_counts if stream else None) or status.counts
    if stream is not None and not alive and not stream.closed:
        counts = stream.counts_without_agent(counts)
    silent_s = max(0.0, now_s - process.last_seen_s)
    state = ProcessState.WAITING if trainers else status.state
    if process.life is Life.SILENT:
        state = ProcessState.SILENT
    row = StatusRow(
        **identity(process, peer),
        state=state if alive else ProcessState(process.life.value),
        session_id=running_id,
        settings=status.settings if alive else None,
        received=counts.received,
        kept=counts.kept,
        untimed=counts.untimed,
        drops=_drops(counts.drops, *((stream.drops, outputs.drops(session_id)) if stream else ())),
        files=list(outputs.files(session_id)) if stream else [],
        last_seen_s=round(silent_s, 3),
        step=status.step,
        step_age_s=_step_age_s(status, 0.0 if process.life is Life.LIVE else silent_s),
        cpu_s=status.cpu_s,
        flush_age_s=status.flush_age_s,
        unavailable_kinds=status.unavailable_kinds,
        stuck_in=status.stuck_in if alive else "",
        library=status.library,
        problem=_problem(status, stream, outputs.problem(session_id) if stream else ""),
        trace=status.trace,
        version=process.version,
        waits_for=[trainer.info.pid for trainer in trainers] or None,
    )
    return row if peer.may_command(process.peer) else _for_strangers(row)


def _drops(*parts: Drops) -> Drops:
    """Return the drops of agent, daemon and outputs together.

    Stages of an agent's invention don't make the row too long.
    """
    return merged_drops(*map(with_known_stages, parts))


def _step_age_s(status: Status, silent_s: float) -> float:
    """Return the age of the last step; it grows while a process says nothing."""
    return status.step_age_s if status.step_age_s < 0 else round(status.step_age_s + silent_s, 3)


def _problem(status: Status, stream: Stream | None, of_outputs: str) -> str:
    waiting = f"not all that was recorded is written: {of_outputs}" if of_outputs else ""
    of_stream = stream.problem if stream else ""
    return "; ".join(filter(None, [status.problem, of_stream, waiting]))


def _for_strangers(row: StatusRow) -> StatusRow:
    """Return the row without what only the owner of the process and operators may see."""
    return dataclasses.replace(
        row,
        session_id="",
        settings=None,
        files=[],
        unavailable_kinds=dict.fromkeys(row.unavailable_kinds, NOT_SHOWN),
        stuck_in=NOT_SHOWN if row.stuck_in else "",
        library="",
        problem=NOT_SHOWN if row.problem else "",
        trace=_without_paths(row.trace),
    )


def _without_paths(trace: TraceRow | None) -> TraceRow | None:
    if trace is None:
        return None
    reason = NOT_SHOWN if trace.reason else ""
    return dataclasses.replace(trace, trace_id="", path="", files=[], reason=reason)


def output_row(row: OutputRow, peer: Peer) -> OutputRow:
    """Return the row of an output; its options and problems may hold paths, for operators only.

    Whose an export is everybody sees, as of a process: else two lines are alike.
    """
    if peer.role is Role.OPERATOR:
        return row
    problem = NOT_SHOWN_OF_OUTPUT if row.problem else ""
    options = {name: text for name, text in row.options.items() if name == EXPORT_OWNER}
    return dataclasses.replace(row, options=options, problem=problem)


def foreign_row(process: Process, peer: Peer) -> AnswerRow:
    """Return the row on a process that the peer may not command."""
    text = f"the process belongs to {process.peer.name}, not to {peer.name}"
    return AnswerRow(**identity(process, peer), ok=False, text=text)

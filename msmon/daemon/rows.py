"""One plain row per process, for the answers to status and commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msmon.bus.messages import Status
from msmon.daemon.access.authentication import Peer
from msmon.daemon.outputs.outputs import Outputs
from msmon.daemon.registry import LIVE, Process
from msmon.daemon.streams import Stream, Streams
from msmon.sessions import merged_drops


def identity_row(process: Process) -> dict[str, Any]:
    """Return who a process is."""
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
        "command": info.command,
    }


def status_row(
    process: Process, streams: Streams, outputs: Outputs, now_s: float
) -> dict[str, Any]:
    """Return who a process is, what it does, and how much of it arrived."""
    status = process.status or Status("unknown")
    session_id = status.session_id or process.session_id
    stream = streams.get(session_id) if session_id else None
    counts = status.counts
    alive = process.life == LIVE
    return {
        **identity_row(process),
        "state": status.state if alive else process.life,
        "session_id": status.session_id,
        "settings": status.settings if alive else {},
        "received": counts.received,
        "kept": counts.kept,
        "untimed": counts.untimed,
        "drops": merged_drops(counts.drops, outputs.drops(session_id) if stream else {}),
        "files": list(outputs.files(session_id)) if stream else [],
        "last_seen_s": round(max(0.0, now_s - process.last_seen_s), 3),
        "step": status.step,
        "step_age_s": status.step_age_s,
        "cpu_s": status.cpu_s,
        "flush_age_s": status.flush_age_s,
        "unavailable_kinds": status.unavailable_kinds,
        "stuck_in": status.stuck_in if alive else "",
        "library": status.library,
        "problem": _problem(status, stream),
        "trace": status.trace,
        "version": process.version,
    }


def _problem(status: Status, stream: Stream | None) -> str:
    return "; ".join(filter(None, [status.problem, stream.problem if stream else ""]))


def foreign_row(process: Process, peer: Peer) -> dict[str, Any]:
    """Return the row on a process that the peer may not command."""
    text = f"the process belongs to {process.peer.name}, not to {peer.name}"
    return {**identity_row(process), "ok": False, "text": text}


def outcome_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how a command went, all processes together."""
    succeeded = [bool(row["ok"]) for row in rows]
    if all(succeeded):
        return "ok"
    return "partial" if any(succeeded) else "failed"

"""The sentences of verdicts. Numbers in them can be copied, and each names the next command."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Iterable, Sequence

from msmon.insight.job import Member


def ranks_text(ranks: Iterable[int]) -> str:
    """Return "0-3, 7" for ranks 0, 1, 2, 3 and 7."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def member_text(member: Member) -> str:
    """Return "rank 21 (node3, NPU 5)"."""
    where = [member.host] if member.host else []
    if member.device >= 0:
        where.append(f"NPU {member.device}")
    return f"rank {member.rank}" + (f" ({', '.join(where)})" if where else "")


def since_text(since_ns: int, since_step: int) -> str:
    """Return "since 2026-12-01 14:02:11 (step 4120)"; without a step where steps are unknown."""
    return f"since {moment_text(since_ns)}" + (f" (step {since_step})" if since_step >= 0 else "")


def moment_text(time_ns: int) -> str:
    """Return a wall clock time as people here write it: "2026-12-01 14:02:11"."""
    return datetime.datetime.fromtimestamp(time_ns / 1e9).strftime("%Y-%m-%d %H:%M:%S")


def cost_text(cost: float | None, waiting: int = 0) -> str:
    """Return what a share ``cost`` of every step is in words."""
    if cost is None:
        return "What it costs the job can't be told."
    waits = f"; {waiting} NPUs wait" if waiting > 1 else "; one NPU waits" if waiting else ""
    return f"It costs the job {percent(cost)} of every step{waits}."


def percent(share: float) -> str:
    """Return 0.18 as "18 %", and small shares with a digit more."""
    return f"{share * 100:.0f} %" if share >= 0.095 else f"{share * 100:.1f} %"


def times(factor: float) -> str:
    """Return 1.4234 as "1.42x"."""
    return f"{factor:.2f}x"


def trace_command(members: Sequence[Member]) -> str:
    """Return the command that traces these ranks for two steps, the first one's host named.

    People copy it into a shell, so the host is quoted: it may come from a forged file.
    """
    host = next((member.host for member in members if member.host), "")
    ranks = ",".join(str(member.rank) for member in members)
    where = f"--host {shlex.quote(host)} " if host else ""
    return f"msmon nputrace {where}--rank {ranks} --iterations 2"

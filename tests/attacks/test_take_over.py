"""A user who wants to be the rank of another, at every moment of that rank's life."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from msmon.agent.ranks.evidence import start_time

pytestmark = pytest.mark.xdist_group("take_over")

HEARTBEAT_S = 2.0
"""The default: a rank is lost after 8 s, and its session stays open for 10 s more."""
ROLES = ["", "agent"]


def identity(victim) -> tuple[int, int, str]:
    pid = victim.rank.pid
    return pid, start_time(pid), victim.session_id or "0" * 32


def refused(said: list[str], role: str) -> bool:
    """Whether a local user was told that the pid is another's; a key has a space of its own."""
    return any("has the pid" in word for word in said) or role == "agent"


@pytest.mark.parametrize("role", ROLES)
def test_before_it_registers(victim, attack, role):
    rank = victim.spawn()
    said = attack("claim", *identity(victim), role=role, watch=lambda: None)
    assert refused(said, role)
    victim.begin(rank)
    with victim.recording():
        attack("claim", *identity(victim), role=role)


@pytest.mark.parametrize("role", ROLES)
def test_while_it_is_silent(victim, attack, role):
    with victim.recording():
        victim.states.clear()
        victim.rank.process.send_signal(signal.SIGSTOP)
        try:
            said = attack("keep_claiming", *identity(victim), 9.0, role=role, watch=victim.row)
        finally:
            victim.rank.process.send_signal(signal.SIGCONT)
        victim.job.await_states("monitoring", victim.rank)
    assert refused(said, role)
    assert victim.states == {"monitoring", "silent"}


@pytest.mark.parametrize("role", ROLES)
def test_while_the_daemon_is_started_again(victim, attack, role):
    with victim.recording(), ThreadPoolExecutor(1) as pool:
        attacking = pool.submit(
            attack, "keep_claiming", *identity(victim), 8.0, role=role, watch=lambda: None
        )
        victim.job.end_daemon(signal.SIGKILL)
        victim.job.start_daemon()
        victim.job.await_states("monitoring", victim.rank)
        assert refused(attacking.result(), role)


@pytest.mark.parametrize("role", ROLES)
def test_when_it_has_ended(victim, attack, role):
    with victim.recording():
        identity_before = identity(victim)
    victim.end()
    said = attack("claim", *identity_before, role=role, watch=victim.row)
    assert refused(said, role)
    assert victim.row().state.value == "ended"
    victim.begin(victim.spawn())

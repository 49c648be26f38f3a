"""A user who claims to be the process, or the owner of the session, of another."""

from __future__ import annotations

import pytest

from msmon.agent.ranks.evidence import start_time

pytestmark = pytest.mark.xdist_group("identity_attacks")


@pytest.mark.parametrize("role", ["", "agent", "viewer"])
def test_nobody_takes_a_live_rank_over(victim, attack, role):
    with victim.recording():
        pid = victim.rank.pid
        said = attack("claim", pid, start_time(pid), victim.session_id, role=role)
    if role == "":
        assert any("has the pid" in word for word in said)
        assert any("has started this helper" in word for word in said)
    assert not any(word.startswith("ack") for word in said) or role == "agent"


@pytest.mark.parametrize("role", ["", "agent"])
def test_nobody_speaks_in_the_session_of_another(victim, attack, role):
    with victim.recording():
        attack("speak_for", victim.session_id, role=role)


@pytest.mark.parametrize("role", ["", "agent", "viewer"])
def test_nobody_commands_the_process_of_another(victim, attack, role):
    with victim.recording():
        attack("command", victim.rank.pid, role=role)


@pytest.mark.parametrize("role", ["", "agent", "viewer"])
def test_nobody_has_the_process_of_another_traced(victim, attack, role, tmp_path):
    with victim.recording():
        said = attack("order_trace", victim.rank.pid, tmp_path / "traces", role=role)
    answers = [word for word in said if word.startswith(("reply", "refused"))]
    assert len(answers) == 2
    assert all("belongs to uid" in word or "may not send" in word for word in answers)
    assert not (tmp_path / "traces").exists()


def test_a_name_forges_no_line_of_the_log(victim, attack):
    with victim.recording():
        attack("forge_log_lines")
    log = (victim.directory / "daemon.log").read_text()
    assert not any(line.startswith("2026-01-01") for line in log.splitlines())
    assert "\x1b" not in log
    assert "\u202e" not in log

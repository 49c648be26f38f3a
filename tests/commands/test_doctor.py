"""``msmon doctor`` as it is shown, and its exit codes."""

from __future__ import annotations

import json

import pytest
from fixtures.rows import daemon_row

from msmon.bus.messages import Reply
from msmon.diagnosis.checks import CHECKS
from msmon.errors import DaemonUnreachable


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    for name in ("LD_PRELOAD", "MSMONITOR_USE_DAEMON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MSMON_SIMULATE", "1")
    monkeypatch.setenv("MSMON_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("MSMON_KEYS_DIR", str(tmp_path / "keys"))


def test_every_check_is_one_line_with_its_remedy(run, daemon) -> None:
    daemon.error = DaemonUnreachable("no daemon runs on this machine", "start msmon-daemon")
    code, out, _ = run("doctor")
    lines = out.splitlines()
    assert code == 1
    assert sum(line.startswith(("ok ", "warn", "fail")) for line in lines) == len(CHECKS)
    place = lines.index("fail  daemon: no daemon runs on this machine")
    assert "      → start msmon-daemon" in lines[place:]


def test_warnings_end_with_0(run, daemon) -> None:
    daemon.reply = Reply("none-registered", daemon=daemon_row(host="node", pid=7))
    code, out, _ = run("doctor")
    assert code == 0
    assert "warn  ranks: no process is registered" in out


def test_json_has_every_check(run, daemon) -> None:
    code, out, _ = run("doctor", "--json")
    document = json.loads(out)
    assert document["ok"] is (code == 0)
    assert len(document["checks"]) == len(CHECKS)
    assert set(document["checks"][0]) == {"check", "level", "text", "remedy", "details"}

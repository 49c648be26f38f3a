"""daemon.toml, environment and command line: which one counts, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from msmon.commands.daemon.command import main
from msmon.commands.daemon.config import Setting, collect, read_config
from msmon.commands.daemon.options import DAEMON_OPTIONS
from msmon.errors import UsageError


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "daemon.toml"
    path.write_text(
        'listen = ["127.0.0.1:1999", "::1"]\nheartbeat-s = 3\ninsecure = false\n'
        'log-level = "warning"\n'
    )
    return path


def test_the_command_line_goes_over_the_environment_over_the_file(config: Path) -> None:
    environ = {"MSMON_DAEMON_HEARTBEAT_S": "4", "MSMON_DAEMON_LOG_LEVEL": "error"}
    settings = collect({"log_level": "debug", "listen": ()}, environ, config)
    assert settings["log_level"] == Setting("debug", "command line")
    assert settings["heartbeat_s"] == Setting(4.0, "MSMON_DAEMON_HEARTBEAT_S")
    assert settings["listen"] == Setting(("127.0.0.1:1999", "::1"), str(config))
    assert settings["insecure_anywhere"] == Setting(False, "default")


def test_repeatable_options_and_switches_in_the_environment(config: Path) -> None:
    environ = {
        "MSMON_DAEMON_SINK": "log; jsonl:dir=/data",
        "MSMON_DAEMON_INSECURE": "1",
        "MSMON_RUNTIME_DIR": "/run/mine",
    }
    settings = collect({}, environ, config)
    assert settings["sink"].value == ("log", "jsonl:dir=/data")
    assert settings["insecure"].value is True
    assert settings["runtime_dir"].value == "/run/mine"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("colour = 1\nsize = 2\n", "unknown option colour, size"),
        ("heartbeat_s = 1\n", "unknown option heartbeat_s"),
        ("heartbeat-s = 0.01\n", "--heartbeat-s: 0.01 is out of range"),
        ('heartbeat-s = "soon"\n', "--heartbeat-s: 'soon' is not a valid value"),
        ("insecure = 1\n", "--insecure: 1 is not a valid value"),
        ('log-level = "loud"\n', "--log-level: 'loud' is not a valid value"),
        ("listen = [1]\n", "--listen: 1 is not a valid value"),
        ("listen = \n", "is no TOML"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(config: Path, text: str, said: str) -> None:
    config.write_text(text)
    with pytest.raises(UsageError) as error:
        read_config(config, must_exist=True)
    assert said in error.value.message
    assert str(config) in error.value.message


def test_a_wrong_variable_is_named(config: Path) -> None:
    with pytest.raises(UsageError, match="MSMON_DAEMON_INSECURE: --insecure: 'maybe'"):
        collect({}, {"MSMON_DAEMON_INSECURE": "maybe"}, config)


def test_only_a_file_that_was_asked_for_must_exist(tmp_path: Path) -> None:
    assert read_config(tmp_path / "none.toml", must_exist=False) == {}
    with pytest.raises(UsageError, match="does not exist"):
        read_config(tmp_path / "none.toml", must_exist=True)


def test_check_config_shows_every_option_and_its_origin(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MSMON_DAEMON_ALLOW_USERS", "nobody")
    assert main(["--check-config", "--config", str(config), "--insecure"]) == 0
    out = capsys.readouterr().out
    assert all(f"{option.key} = " in out for option in DAEMON_OPTIONS)
    assert 'allow-users = "nobody"  # MSMON_DAEMON_ALLOW_USERS' in out
    assert f"heartbeat-s = 3  # {config}" in out
    assert "insecure = true  # command line" in out


def test_check_config_refuses_what_can_not_work(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text('sink = ["nonsense"]\n')
    assert main(["--check-config", "--config", str(config)]) == 2
    assert "nonsense" in capsys.readouterr().err

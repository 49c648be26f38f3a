"""daemon.toml, environment and command line: which one counts, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from msmon.bus.messages import Selection
from msmon.commands.daemon.always_table import order_of_table
from msmon.commands.daemon.command import daemon, main
from msmon.commands.daemon.config import Setting, in_force, read_config
from msmon.commands.daemon.daemon_options import DAEMON_OPTIONS
from msmon.errors import UsageError


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "daemon.toml"
    path.write_text(
        'listen = ["127.0.0.1:1999", "::1"]\nheartbeat-s = 3\ninsecure = false\n'
        'log-level = "warning"\n'
    )
    return path


def settings(*arguments: object) -> dict[str, Setting]:
    """Return what is in force for a command line."""
    return in_force(daemon.make_context("msmon-daemon", list(map(str, arguments))))


def test_the_command_line_goes_over_the_environment_over_the_file(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MSMON_DAEMON_HEARTBEAT_S", "4")
    monkeypatch.setenv("MSMON_DAEMON_LOG_LEVEL", "error")
    found = settings("--config", config, "--log-level", "debug")
    assert found["log_level"] == Setting("debug", "command line")
    assert found["heartbeat_s"] == Setting(4.0, "MSMON_DAEMON_HEARTBEAT_S")
    assert found["listen"] == Setting(("127.0.0.1:1999", "::1"), str(config))
    assert found["insecure_anywhere"] == Setting(False, "default")


def test_repeatable_options_and_switches_in_the_environment(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MSMON_DAEMON_SINK", "log; jsonl:dir=/data;")
    monkeypatch.setenv("MSMON_DAEMON_INSECURE", "1")
    monkeypatch.setenv("MSMON_RUNTIME_DIR", "/run/mine")
    found = settings("--config", config)
    assert found["sink"].value == ("log", "jsonl:dir=/data")
    assert found["insecure"] == Setting(True, "MSMON_DAEMON_INSECURE")
    assert found["runtime_dir"] == Setting("/run/mine", "MSMON_RUNTIME_DIR")


def test_a_switch_that_the_file_sets_is_taken_back_by_a_variable(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("insecure = true\n")
    assert settings("--config", config)["insecure"] == Setting(True, str(config))
    monkeypatch.setenv("MSMON_DAEMON_INSECURE", "no")
    assert settings("--config", config)["insecure"] == Setting(False, "MSMON_DAEMON_INSECURE")


def test_variables_of_other_names_mean_nothing(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONFIG", "PORT", "USER", "PRINT_ONLY"):  # Kubernetes makes such for a service
        monkeypatch.setenv(f"MSMON_DAEMON_{name}", "tcp://10.0.0.1:1778")
    origins = {setting.origin for setting in settings("--config", config).values()}
    assert origins == {str(config), "default"}


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


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("INSECURE", "maybe", "--insecure: 'maybe' is not a valid value"),
        ("HEARTBEAT_S", "0.01", "--heartbeat-s: '0.01' is out of range"),
        ("LOG_LEVEL", "loud", "--log-level: 'loud' is not a valid value"),
    ],
)
def test_a_wrong_variable_is_named(
    config: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, said: str
) -> None:
    monkeypatch.setenv(f"MSMON_DAEMON_{name}", text)
    with pytest.raises(UsageError) as error:
        settings("--config", config)
    assert error.value.message == f"MSMON_DAEMON_{name}: {said}"


def test_a_wrong_value_in_the_file_is_refused_even_where_the_command_line_goes_over_it(
    config: Path,
) -> None:
    config.write_text("heartbeat-s = 0\n")
    with pytest.raises(UsageError, match="--heartbeat-s: 0 is out of range"):
        settings("--config", config, "--heartbeat-s", "2")


def test_a_broken_configuration_keeps_nobody_from_installing_the_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "daemon.toml"
    broken.write_text("colour = 1\n")
    monkeypatch.setattr("msmon.commands.daemon.config.default_config_path", lambda environ: broken)
    assert main(["--check-config"]) == 2
    assert main(["--install-unit", "--print"]) == 0


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
    unset = {"metric-log-dir"}
    assert all(f"{each.key} = " in out for each in DAEMON_OPTIONS if each.key not in unset)
    assert "# metric-log-dir is not set" in out
    assert 'allow-users = "nobody"  # MSMON_DAEMON_ALLOW_USERS' in out
    assert f"heartbeat-s = 3  # {config}" in out
    assert "insecure = true  # command line" in out


@pytest.mark.parametrize(("uid", "who"), [(0, "everybody"), (1000, "nobody")])
def test_check_config_shows_the_defaults_that_are_in_force(
    uid: int, who: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("os.geteuid", lambda: uid)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in ("MSMON_RUNTIME_DIR", "MSMON_KEYS_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    empty = tmp_path / "empty.toml"
    empty.touch()
    assert main(["--check-config", "--config", str(empty)]) == 0
    out = capsys.readouterr().out
    keys = "/etc/msmon/keys" if uid == 0 else tmp_path / ".config/msmon/keys"
    place = "/run/msmon" if uid == 0 else tmp_path / "msmon"
    assert f'allow-users = "{who}"  # default' in out
    assert f'keys = "{keys}"  # default' in out
    assert f'runtime-dir = "{place}"  # default' in out


def test_what_check_config_shows_is_a_configuration(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check-config", "--config", str(config)]) == 0
    shown = tmp_path / "shown.toml"
    shown.write_text(capsys.readouterr().out)
    found = read_config(shown, must_exist=True)
    assert found["heartbeat-s"] == 3
    assert found["allow-users"] in ("everybody", "nobody")


def test_an_empty_list_of_users_is_refused(config: Path) -> None:
    config.write_text('allow-users = ""\n')
    with pytest.raises(UsageError, match="--allow-users"):
        read_config(config, must_exist=True)


def test_check_config_refuses_what_can_not_work(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text('sink = ["nonsense"]\n')
    assert main(["--check-config", "--config", str(config)]) == 2
    assert "nonsense" in capsys.readouterr().err


def test_a_table_gives_a_standing_order():
    table = {"kind": "Kernel", "rank": "0-2", "job-id": [4711, "x"], "name": "night"}
    order = order_of_table(table, "/etc/msmon/daemon.toml")
    assert (order.name, order.file) == ("night", "/etc/msmon/daemon.toml")
    assert order.selection == Selection(ranks=[0, 1, 2], job_ids=["4711", "x"])
    assert order.fields == {"kinds": "Kernel", "report_interval_s": 10.0}
    assert order_of_table({"rank": 3}, "f").name == "daemon.toml"


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("yes", "must be a table"),
        ({"colour": 1}, "unknown option colour"),
        ({"duration": 5}, "--duration"),
        ({"rank": True}, "rank = True"),
        ({"rank": "x"}, "--rank"),
        ({"name": "a b"}, "--name"),
        ({"kind": "Nothing"}, "--kind"),
        ({"log-file": "out"}, "absolute"),
    ],
)
def test_a_table_that_gives_no_order_is_refused(table, named):
    with pytest.raises(UsageError, match=named) as caught:
        order_of_table(table, "f.toml")
    assert caught.value.message.startswith("f.toml: [always]: ")

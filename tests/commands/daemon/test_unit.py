"""The systemd units: installed files, and what systemd itself says of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from msmon.commands.daemon.command import main
from msmon.commands.daemon.config import read_config
from msmon.commands.daemon.unit import UNIT, install, system_files, user_files
from msmon.errors import UsageError

EXPOSURE_LIMIT = 3.0

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd-analyze here"
)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    install(system_files("/bin/sh"), tmp_path)  # any program that is there
    return tmp_path / "etc/systemd/system" / UNIT


def test_installed_files_and_a_configuration_that_is_kept(tmp_path: Path) -> None:
    install(system_files(), tmp_path)
    config = tmp_path / "etc/msmon/daemon.toml"
    assert read_config(config, must_exist=True)["allow-users"] == "everybody"
    config.write_text('allow-users = "nobody"\n')
    assert f"{config} stays as it is" in install(system_files(), tmp_path)
    assert config.read_text() == 'allow-users = "nobody"\n'


@pytest.mark.parametrize("python", ["/opt/msmon/bin/python", "/home/me/venv/bin/python"])
def test_the_unit_runs_this_interpreter_and_can_read_it(python: str) -> None:
    text = system_files(python)[0].text
    assert f"ExecStart={python} -m msmon.commands.daemon --config /etc/msmon/daemon.toml" in text
    assert f"ProtectHome={'read-only' if '/home' in python else 'yes'}" in text
    assert "{" not in text


def test_the_users_unit_lies_in_the_users_configuration() -> None:
    (file,) = user_files({"XDG_CONFIG_HOME": "/home/me/.config"})
    assert file.path == Path("/home/me/.config/systemd/user") / UNIT
    assert f"ExecStart={sys.executable} -m" in file.text
    assert "\nUser=" not in file.text


def test_print_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--install-unit", "--print"]) == 0
    assert "Type=notify" in capsys.readouterr().out


def test_user_and_print_need_install_unit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--user"]) == 2
    assert "--install-unit" in capsys.readouterr().err


def test_a_directory_that_is_closed_gets_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(UsageError) as error:
        install(system_files(), tmp_path)
    assert "--user" in error.value.next_step


@needs_systemd
def test_systemd_finds_nothing_to_complain_about(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True
    )
    ours = [line for line in done.stderr.splitlines() if UNIT in line]
    assert (done.returncode, ours) == (0, [])


@needs_systemd
def test_systemd_rates_the_exposure_low(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze can't look at files")
    found = re.search(rf"exposure level for {UNIT}: ([0-9.]+)", done.stdout)
    assert found, done.stderr
    assert float(found[1]) < EXPOSURE_LIMIT

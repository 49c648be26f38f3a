"""The files that systemd needs to run ``msmon watch``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from msmon.commands.daemon.unit import HOMES, UnitFile, install, unit_text

UNIT = "msmon-watch.service"


def system_files(python: str = sys.executable) -> list[UnitFile]:
    """Return the files for a watch of the machine's daemon, or of others: unit, user, options.

    The options may hold an address that is a secret, so root and systemd alone may read them.
    """
    home = "read-only" if python.startswith(HOMES) else "yes"
    return [
        UnitFile(
            Path("/etc/systemd/system") / UNIT, unit_text(UNIT, python=python, protect_home=home)
        ),
        UnitFile(Path("/etc/sysusers.d/msmon.conf"), unit_text("msmon.sysusers.conf")),
        UnitFile(Path("/etc/msmon/watch.env"), unit_text("watch.env"), keep=True, mode=0o600),
    ]


def user_files(environ: Mapping[str, str], python: str = sys.executable) -> list[UnitFile]:
    """Return the files for a watch of one user."""
    config = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return [
        UnitFile(
            config / "systemd/user" / UNIT, unit_text("msmon-watch.user.service", python=python)
        ),
        UnitFile(config / "msmon/watch.env", unit_text("watch.env"), keep=True, mode=0o600),
    ]


def install_watch_unit(user: bool, print_only: bool) -> None:
    """Install the files, or only show them; say what to run next."""
    files = user_files(os.environ) if user else system_files()
    if print_only:
        for file in files:
            click.echo(f"# --- {file.path}\n{file.text}")
        return
    for line in install(files):
        click.echo(line)
    click.echo(f"now run:\n{next_commands(user)}")


def next_commands(user: bool) -> str:
    """Return the shell commands to run after the installation."""
    if user:
        return (
            "systemctl --user daemon-reload && systemctl --user enable --now msmon-watch\n"
            "loginctl enable-linger  # to keep it running after log-out"
        )
    return "systemd-sysusers && systemctl daemon-reload && systemctl enable --now msmon-watch"

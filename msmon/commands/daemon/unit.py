"""The files that systemd needs to run the daemon, and their installation."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from msmon.errors import SinkError, UsageError

UNIT = "msmon-daemon.service"
HOMES = ("/home/", "/root/", "/run/user/")


@dataclass(frozen=True)
class UnitFile:
    """One file to install. ``keep``: an existing file is not overwritten."""

    path: Path
    text: str
    keep: bool = False
    mode: int = 0o644


def system_files(python: str = sys.executable) -> list[UnitFile]:
    """Return the files for a daemon that serves the whole machine: unit, user, configuration."""
    # ProtectHome=yes would hide an interpreter that lies in a home directory.
    home = "read-only" if python.startswith(HOMES) else "yes"
    return [
        UnitFile(
            Path("/etc/systemd/system") / UNIT, unit_text(UNIT, python=python, protect_home=home)
        ),
        UnitFile(Path("/etc/sysusers.d/msmon.conf"), unit_text("msmon.sysusers.conf")),
        UnitFile(Path("/etc/msmon/daemon.toml"), unit_text("daemon.toml"), keep=True),
    ]


def user_files(environ: Mapping[str, str], python: str = sys.executable) -> list[UnitFile]:
    """Return the files for a daemon of one user."""
    config = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    text = unit_text("msmon-daemon.user.service", python=python)
    return [UnitFile(config / "systemd/user" / UNIT, text)]


def unit_text(name: str, **values: str) -> str:
    """Return a shipped file with its values filled in."""
    text = (resources.files("msmon") / "systemd" / name).read_text("utf-8")
    for key, value in values.items():
        text = text.replace(f"{{{key}}}", value)
    return text


def install(files: list[UnitFile], root: Path = Path("/")) -> list[str]:
    """Write the files below ``root`` and return a line about each.

    Raises UsageError without the right to write, SinkError if writing fails otherwise.
    """
    done = []
    for file in files:
        path = root / file.path.relative_to("/")
        if file.keep and path.exists():
            done.append(f"{path} stays as it is")
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(file.mode)
            path.chmod(file.mode)
            path.write_text(file.text, "utf-8")
        except PermissionError:
            raise UsageError(
                f"{path} can't be written by uid {os.geteuid()}",
                "run it as root, or add --user for a daemon of your own",
            ) from None
        except OSError as error:
            raise SinkError(f"{path} can't be written: {error.strerror}") from None
        done.append(f"wrote {path}")
    return done


def next_commands(user: bool) -> str:
    """Return the shell commands to run after the installation."""
    if user:
        return (
            "systemctl --user daemon-reload && systemctl --user enable --now msmon-daemon\n"
            "loginctl enable-linger  # to keep it running after log-out"
        )
    return "systemd-sysusers && systemctl daemon-reload && systemctl enable --now msmon-daemon"

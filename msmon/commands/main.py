"""The ``msmon`` command: a group that imports a subcommand only when it is used, and
the one place where an error becomes text on stderr and an exit code."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import click

import msmon
from msmon.errors import MsmonError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it (128 + SIGINT)."""


class Entry(NamedTuple):
    """Where a subcommand lives, and the line that ``msmon --help`` shows for it."""

    module: str
    attribute: str
    summary: str


COMMANDS: dict[str, Entry] = {
    "run": Entry("msmon.commands.run", "run", "Start a job so that its ranks register."),
    "run": Entry("msmon.commands.run", "run", "Start a job so that its ranks register."),
    "npu-monitor": Entry(
        "msmon.commands.npu_monitor", "npu_monitor", "Start, change and stop operator monitoring."
    ),
    "nputrace": Entry(
        "msmon.commands.nputrace", "nputrace", "Trace some steps of running processes."
    ),
    "status": Entry("msmon.commands.status", "status", "Show every registered process."),
    "convert": Entry(
        "msmon.commands.convert", "convert_command", "Turn exported files into other formats."
    ),
    "doctor": Entry("msmon.commands.doctor", "doctor", "Check all that monitoring needs."),
    "keys": Entry("msmon.commands.keys", "keys", "Manage who may reach a daemon from elsewhere."),
    "version": Entry("msmon.commands.version", "version", "Show the version of both sides."),
    "demo": Entry("msmon.commands.demo", "demo", "See it work here, without an NPU."),
}


@dataclass
class Invocation:
    """What the error handler must know of the running command."""

    json: bool = False


class LazyGroup(click.Group):
    """A group over ``COMMANDS``: listing them imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(entry.module), entry.attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with `msmon demo`. Help on one command: msmon COMMAND --help",
)
@click.version_option(msmon.__version__, prog_name="msmon")
def cli() -> None:
    """Watch the operators of running training and inference jobs on Ascend NPUs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: done. 1: failed, or no process matched. 2: an option is wrong. 130: Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # names from a job may not fit the terminal's encoding
            reconfigure(errors="backslashreplace")
    invocation = Invocation()
    try:
        code = cli.main(arguments, prog_name="msmon", standalone_mode=False, obj=invocation)
    except MsmonError as error:
        _show(error, invocation.json)
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return code if isinstance(code, int) else 0


def _show(error: MsmonError, as_json: bool) -> None:
    if as_json:
        document: dict[str, Any] = {
            "outcome": "error",
            "error": type(error).__name__,
            "text": error.message,
            "next_step": error.next_step,
        }
        click.echo(json.dumps(document))
    click.echo(f"msmon: {error.message}", err=True)
    if error.next_step:
        click.echo(f"  {error.next_step}", err=True)


if __name__ == "__main__":
    sys.exit(main())

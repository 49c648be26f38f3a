"""The ``msmon`` command: a group that imports a subcommand only when it is used, and
the one place where an error becomes text on stderr and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

import click

import msmon
from msmon.commands.error_answer import error_as_json
from msmon.errors import MsmonError, UsageError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it (128 + SIGINT)."""


class Entry(NamedTuple):
    """Where a subcommand lives, and the line that ``msmon --help`` shows for it."""

    module: str
    attribute: str
    summary: str


COMMANDS: dict[str, Entry] = {
    "run": Entry("msmon.commands.run", "run", "Start a job so that its ranks register."),
    "npu-monitor": Entry(
        "msmon.commands.npu_monitor", "npu_monitor", "Start, change and stop operator monitoring."
    ),
    "nputrace": Entry(
        "msmon.commands.nputrace.command", "nputrace", "Trace some steps of running processes."
    ),
    "status": Entry("msmon.commands.status.command", "status", "Show every registered process."),
    "top": Entry("msmon.commands.top.command", "top", "Look at the jobs as they run."),
    "watch": Entry(
        "msmon.commands.watch.command", "watch", "Say by itself who is slow, and act on it."
    ),
    "verdicts": Entry(
        "msmon.commands.verdicts", "verdicts", "List present and recent verdicts on the jobs."
    ),
    "analyze": Entry(
        "msmon.commands.analyze", "analyze", "Ask exported files who is slow, and why."
    ),
    "convert": Entry(
        "msmon.commands.convert", "convert_command", "Turn exported files into other formats."
    ),
    "doctor": Entry("msmon.commands.doctor", "doctor", "Check all that monitoring needs."),
    "keys": Entry("msmon.commands.keys", "keys", "Manage who may reach a daemon from elsewhere."),
    "version": Entry("msmon.commands.version", "version", "Show the version of both sides."),
    "demo": Entry("msmon.commands.demo.command", "demo", "See it work here, without an NPU."),
}


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
    _prepare_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in words  # even where click can't make sense of the rest
    try:
        code = cli.main(words, prog_name="msmon", standalone_mode=False)
        sys.stdout.flush()
    except MsmonError as error:
        return _fail(error, as_json)
    except click.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        if as_json:
            return _fail(UsageError(error.format_message()), as_json)
        error.show()
        return error.exit_code
    except OSError as error:  # most often the output itself: a full disk
        _discard_output()
        return _fail(MsmonError(f"{error.strerror}: {error.filename or 'the output'}"), False)
    return code if isinstance(code, int) else 0


def _prepare_streams() -> None:
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:  # closed; no socket may take its number
            _put_null_at(descriptor)
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115  for life
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # names from a job may not fit the terminal's encoding
            reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Let what could not be written go, so that the interpreter's end does not try again."""
    _put_null_at(sys.stdout.fileno())


def _put_null_at(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null != descriptor:
        os.dup2(null, descriptor)
        os.close(null)


def _fail(error: MsmonError, as_json: bool) -> int:
    """Show the error and return its exit code."""
    if as_json:
        click.echo(error_as_json(error))
    click.echo(f"msmon: {error.message}", err=True)
    if error.next_step:
        click.echo(f"  {error.next_step}", err=True)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())

"""``msmon run``: start a job, by whatever launcher, so that its ranks register."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

import click

from msmon.diagnosis.preload import library_to_preload, preload_entries
from msmon.errors import MsmonError

NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit codes that shells and env(1) use."""


@click.command(
    context_settings={
        "help_option_names": ["-h", "--help"],
        "allow_interspersed_args": False,
    }
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(command: tuple[str, ...]) -> None:
    """Run COMMAND so that its ranks register with the daemon; no change to the script.

    \b
    msmon run torchrun --nproc_per_node 8 train.py --batch-size 32
    msmon run -- python train.py

    Sets MSMONITOR_USE_DAEMON=1 and, for CANN before 9.0, adds libmspti.so to LD_PRELOAD.
    Then COMMAND takes the place of msmon: exit code, signals and all else are its own.
    """
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and exec would keep it so
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, job_environment(os.environ))
    except FileNotFoundError:
        raise _not_started(command[0], "there is no such command", NOT_FOUND) from None
    except OSError as error:
        raise _not_started(command[0], str(error.strerror), NOT_EXECUTABLE) from None


def job_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a job: ``environ`` and what makes its ranks register."""
    changed = {**environ, "MSMONITOR_USE_DAEMON": "1"}
    library = library_to_preload(environ)
    if library:
        changed["LD_PRELOAD"] = ":".join([library, *preload_entries(environ)])
    return changed


def _not_started(name: str, reason: str, exit_code: int) -> MsmonError:
    error = MsmonError(f"can't run {name!r}: {reason}", "check the name and PATH")
    error.exit_code = exit_code
    return error

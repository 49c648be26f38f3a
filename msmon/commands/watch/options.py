"""What ``msmon watch`` can be told: on the command line, by the environment, and in daemon.toml.

``--on-verdict`` is ``MSMON_WATCH_ON_VERDICT`` in the environment, and ``on-verdict`` in the table
``[watch]`` of daemon.toml.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from msmon.commands.asking.parameters import Command, option_from
from msmon.errors import UsageError
from msmon.settings.options import Option, flag, real_number, text_up_to, whole_number

ENVIRONMENT_PREFIX = "MSMON_WATCH"


def _absolute(value: Any) -> str:
    text = text_up_to(4096)(value)
    if not os.path.isabs(text):
        raise UsageError(f"{text!r} is not absolute", "give an absolute path")
    return text


MINOR = Option(
    "minor",
    "--minor",
    "Also print verdicts that cost less than 1 % of a step; nobody is called for those.",
    flag,
    default=False,
)
ON_VERDICT = Option(
    "on_verdict",
    "--on-verdict",
    "Shell command to run for each verdict, which it gets as JSON on its standard input.",
    text_up_to(65536),
    metavar="COMMAND",
)
ON_VERDICT_LIMIT = Option(
    "on_verdict_limit_s",
    "--on-verdict-limit-s",
    "Seconds after which this command is killed, with all that it has started.",
    real_number,
    default=30.0,
    minimum=0.1,
    maximum=3600,
    metavar="SECONDS",
)
WEBHOOK = Option(
    "webhook",
    "--webhook",
    "Address that gets each verdict as JSON by POST.",
    text_up_to(4096),
    metavar="URL",
)
WEBHOOK_SECRET_FILE = Option(
    "webhook_secret_file",
    "--webhook-secret-file",
    "File with a header for --webhook, such as `Authorization: Bearer …`, readable by you only.",
    text_up_to(4096),
    metavar="FILE",
)
TRACE = Option(
    "trace",
    "--trace",
    "Trace two steps of the rank to blame, a healthy peer, and a rank that waits.",
    flag,
    default=False,
)
LOG_FILE = Option(
    "log_file",
    "--log-file",
    "Directory for these traces, on the machine of the job.",
    _absolute,
    default="/tmp/msmon-trace",
    metavar="DIRECTORY",
)
TRACE_EVERY = Option(
    "trace_every_min",
    "--trace-every",
    "Minutes between two traces of a job.",
    real_number,
    default=30.0,
    minimum=1,
    maximum=10080,
    metavar="MINUTES",
)
TRACES_PER_DAY = Option(
    "traces_per_day",
    "--traces-per-day",
    "Traces of a job within 24 hours.",
    whole_number,
    default=6,
    minimum=1,
    maximum=1000,
    metavar="NUMBER",
)

WATCH_OPTIONS = (
    MINOR,
    ON_VERDICT,
    ON_VERDICT_LIMIT,
    WEBHOOK,
    WEBHOOK_SECRET_FILE,
    TRACE,
    LOG_FILE,
    TRACE_EVERY,
    TRACES_PER_DAY,
)
WATCH_OPTION = {option.flag.lstrip("-"): option for option in WATCH_OPTIONS}
"""By the key in daemon.toml."""


def watch_options(command: Command) -> Command:
    """Add all options to a click command; those that were not given have their default."""
    for option in reversed(WATCH_OPTIONS):
        if option.default is False:
            add: Callable[[Command], Command] = click.option(
                option.flag, option.name, is_flag=True, help=option.help
            )
        else:
            add = option_from(option)
        command = add(command)
    return command


def in_force(given: dict[str, Any]) -> dict[str, Any]:
    """Return the value of each option by name, the default where none was given.

    Raises UsageError where one option needs another.
    """
    values = {
        option.name: option.default if given[option.name] is None else given[option.name]
        for option in WATCH_OPTIONS
    }
    for name, needed in (
        ("webhook_secret_file", WEBHOOK),
        ("on_verdict_limit_s", ON_VERDICT),
        ("log_file", TRACE),
        ("trace_every_min", TRACE),
        ("traces_per_day", TRACE),
    ):
        if given[name] is not None and not values[needed.name]:
            option = next(one for one in WATCH_OPTIONS if one.name == name)
            raise UsageError(f"{option.flag} belongs to {needed.flag}", f"give {needed.flag} too")
    return values


def as_variables(table: dict[str, Any], origin: str) -> dict[str, str]:
    """Return the environment that gives ``msmon watch`` the options of a table ``[watch]``.

    Raises UsageError that names ``origin`` for an unknown option or a wrong value.
    """
    unknown = sorted(set(table) - set(WATCH_OPTION))
    if unknown:
        raise UsageError(
            f"{origin}: [watch]: unknown option {', '.join(unknown)}",
            f"known: {', '.join(WATCH_OPTION)}",
        )
    given: dict[str, Any] = {option.name: None for option in WATCH_OPTIONS}
    try:
        for key, value in table.items():
            given[WATCH_OPTION[key].name] = WATCH_OPTION[key].check(value)
        in_force(given)
    except UsageError as error:
        raise UsageError(f"{origin}: [watch]: {error.message}", error.next_step) from None
    return {
        f"{ENVIRONMENT_PREFIX}_{name.upper()}": str(value).lower() if value is True else str(value)
        for name, value in given.items()
        if value not in (None, False)
    }

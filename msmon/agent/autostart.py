"""Start of the agent in ranks whose script knows nothing of msmon.

The file ``msmon-autostart.pth`` beside the installed packages imports this module when an
interpreter starts with MSMONITOR_USE_DAEMON or KINETO_USE_DAEMON in its environment. A
process that is evidently a rank gets its agent at once. In any other one, nothing happens
until it imports a framework: then its steps are watched, and the first makes it a rank.
"""

from __future__ import annotations

import contextlib
import os
from types import ModuleType

from msmon.agent.ranks import evidence as ranks

FRAMEWORKS = ("torch", "mindspore")

_done = False
"""Whether :func:`start` has run. Written by the thread that starts the interpreter."""


def start() -> None:
    """Do what this process needs, once. Never raises and never prints."""
    global _done
    environ = os.environ
    if _done:  # in a virtual environment, some Pythons read every .pth file twice
        return
    _done = True
    if not ranks.is_asked_for(environ) or ranks.belongs_to_a_rank(environ):
        return
    with contextlib.suppress(Exception):  # boundary: the interpreter must start as ever
        if ranks.is_evident(environ, ranks.command_line()):
            _start_agent()
        else:
            _wait_for_framework()


def _start_agent() -> None:
    from msmon.agent import lifecycle

    lifecycle.start_if_rank()


def _wait_for_framework() -> None:
    from msmon.agent.steps.import_watch import ImportWatch

    ImportWatch(dict.fromkeys(FRAMEWORKS, _watch_steps), lambda _: None).start()


def _watch_steps(_: ModuleType) -> None:
    from msmon.agent import lifecycle

    lifecycle.watch_steps()

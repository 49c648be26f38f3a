"""Start of the agent in ranks whose script knows nothing of msmon.

The file ``msmon-autostart.pth`` beside the installed packages imports this module when an
interpreter starts with MSMONITOR_USE_DAEMON or KINETO_USE_DAEMON in its environment. At that
moment the script has not begun. It may still set variables that libraries read when they are
loaded, and add directories with libraries of its own to ``sys.path``. So only the standard
library is imported before.

A process that is evidently a rank gets its agent a moment after its script has begun. In any
process the steps are watched from the import of a framework on, and the first makes it a rank.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from types import ModuleType

from msmon.agent import imports
from msmon.agent.ranks import evidence as ranks
from msmon.threads import NativeThread, sleep, thread_id

FRAMEWORKS = ("torch", "mindspore")

SETTLE_S = 1.0
"""Time between the first line of the script and the agent's start in an evident rank. The first
lines set variables and ``sys.path``. Until then the agent must not load any library."""

_BEGIN_LIMIT_S = 30.0
"""A script is taken to have begun after this time. In an embedded interpreter none ever does."""
_POLL_S = 0.05

_done = False
"""Whether :func:`start` has run. Written by the thread that starts the interpreter."""


def start() -> None:
    """Do what this process needs, once. Never raises and never prints."""
    global _done
    environ = os.environ
    if _done:  # in a virtual environment, some Pythons read every .pth file twice
        return
    _done = True
    if not ranks.is_asked_for(environ):
        return
    with contextlib.suppress(Exception):  # boundary: the interpreter must start as ever
        evident = ranks.is_evident(environ, ranks.command_line())
        if evident and not ranks.belongs_to_a_rank(environ):
            ranks.mark(environ)  # before the script starts processes of its own
            NativeThread(_start_agent, "msmon-start", thread_id()).start()
        _wait_for_framework()


def _start_agent(main_thread: int) -> None:
    """Start the agent when the script has begun. Runs on a thread of its own."""
    limit_s = time.monotonic() + _BEGIN_LIMIT_S
    while not _script_has_begun(main_thread) and time.monotonic() < limit_s:
        sleep(_POLL_S)
    sleep(SETTLE_S)
    with contextlib.suppress(Exception):  # boundary: nothing may be printed into the job
        with imports.before_forks():
            from msmon.agent import lifecycle
        lifecycle.start_if_rank()


def _script_has_begun(main_thread: int) -> bool:
    """Whether the main thread runs code of the script, and not only what starts Python."""
    frame = sys._current_frames().get(main_thread)
    while frame is not None:
        if frame.f_globals.get("__name__") == "__main__":
            return True
        frame = frame.f_back
    return False


def _wait_for_framework() -> None:
    from msmon.agent.steps.import_watch import ImportWatch, OnImport

    on_import: dict[str, OnImport] = {
        **dict.fromkeys(FRAMEWORKS, _watch_steps),
        **dict.fromkeys(imports.PATCHERS, imports.wait),
    }
    ImportWatch(on_import, lambda _: None).start()


def _watch_steps(_: ModuleType) -> None:
    from msmon.agent import lifecycle

    lifecycle.watch_steps()

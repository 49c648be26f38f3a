"""Commands that leave nothing behind when a signal ends them."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that ``finally`` and ``except`` clean up.

    By default they end a process at once. A signal that is ignored stays so: ``nohup`` ignores
    SIGHUP. The exit code is 128 + the signal's number, as shells have it. Only for the main
    thread.
    """

    def end(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    changed = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in changed:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)

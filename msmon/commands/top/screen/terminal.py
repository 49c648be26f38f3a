"""The terminal of the full screen, and how it is left as it was.

It is put back whatever happens: at the end, by an error, by SIGTERM and SIGHUP (which become
SystemExit in ``msmon.commands.signals``), and while the command is suspended with Ctrl-Z.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import signal
import sys
import termios
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from msmon.commands.top.screen.key_codes import keys_in

ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""The other screen, no cursor, no wrapping."""
LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"

REST_S = 0.03
"""A sequence of a key is complete after so long: a lone escape is the Escape key."""

END_OF_INPUT = "end-of-input"
"""Told as a key when nobody can press one any more."""


class Terminal:
    """Reads keys and shows lines. Use it as a context manager, on the main thread.

    Only :meth:`wake` may be called by other threads.
    """

    def __init__(self) -> None:
        self._input = sys.stdin.fileno()
        self._output = sys.stdout.fileno()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._open = True
        """Whether the input has not ended."""
        self._shown: list[str] = []
        """The lines that are on the screen."""
        self._fresh = True
        """Nothing is on the screen."""
        self._console: Console | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Terminal:
        self._saved = termios.tcgetattr(self._input)
        self._wake_read, self._wake_write = os.pipe()
        for descriptor in (self._wake_read, self._wake_write):
            os.set_blocking(descriptor, False)
        self._before = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        try:
            self._handle(signal.SIGWINCH, lambda *_: None)
            self._handle(signal.SIGTSTP, self._suspend)
            self._take()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        try:
            width, height = os.get_terminal_size(self._output)
        except OSError:
            width, height = 0, 0
        return width or 80, height or 24

    def wake(self) -> None:
        """Let :meth:`keys` return; may be called on any thread."""
        with contextlib.suppress(OSError):  # full: it wakes anyway
            os.write(self._wake_write, b"\0")

    def keys(self, timeout_s: float) -> list[str]:
        """Wait for keys, for :meth:`wake`, or for a signal such as a resize; return the keys."""
        ready, _, _ = select.select([self._input, self._wake_read], [], [], timeout_s)
        if self._wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
        if self._input not in ready:
            return []
        keys, self._rest = keys_in(self._rest + self._read(), is_all=False)
        if self._rest:
            if select.select([self._input], [], [], REST_S)[0]:
                self._rest += self._read()
            more, self._rest = keys_in(self._rest)
            keys += more
        return keys if self._open else [*keys, END_OF_INPUT]

    def show(self, lines: Sequence[Text]) -> None:
        """Show these lines, the first at the top; only what has changed is written."""
        width, height = self.size
        if self._console is None or (self._console.width, self._console.height) != (width, height):
            self._console = Console(
                width=width, height=height, highlight=False, force_terminal=True, soft_wrap=True
            )
            self._fresh = True
        if self._fresh:
            self._fresh, self._shown = False, []
        with self._console.capture() as captured:
            self._console.print(Group(*lines), soft_wrap=True)
        drawn = captured.get().split("\n")[:height]
        changes = [] if self._shown else ["\x1b[2J"]
        for place, line in enumerate(drawn):
            if place >= len(self._shown) or self._shown[place] != line:
                changes.append(f"\x1b[{place + 1};1H{line}\x1b[0m\x1b[K")
        self._shown = drawn
        self._write("".join(changes))

    def _read(self) -> str:
        try:
            data = os.read(self._input, 4096)
        except OSError:  # the terminal is gone
            data = b""
        self._open = bool(data)
        return self._decoder.decode(data)

    def _handle(self, number: int, handler: Any) -> None:
        self._handlers[number] = signal.signal(number, handler)

    def _take(self) -> None:
        attributes = termios.tcgetattr(self._input)
        attributes[3] &= ~(termios.ICANON | termios.ECHO)
        attributes[6][termios.VMIN], attributes[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._input, termios.TCSADRAIN, attributes)
        self._fresh = True
        self._write(ENTER)

    def _give_back(self) -> None:
        with contextlib.suppress(OSError):
            self._write(LEAVE)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._saved)

    def _suspend(self, number: int, _: Any) -> None:
        """Stop as Ctrl-Z wants it, and go on with SIGCONT."""
        self._give_back()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        signal.signal(number, self._suspend)
        self._take()

    def _close(self) -> None:
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before)
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._wake_write = -1

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        while data:
            data = data[os.write(self._output, data) :]

"""What the checks look at: the environment, the processes, the answer of the daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from msmon.bus.messages import Reply
from msmon.diagnosis.proc import SeenProcess, processes
from msmon.errors import MsmonError


@dataclass
class Surroundings:
    """What is examined. The daemon is asked and the processes are listed once, at first use."""

    environ: Mapping[str, str]
    ask: Callable[[], Reply]
    """Asks the daemon for its status. Raises MsmonError."""
    remote: bool = False
    """True if the daemon is on another machine."""
    fix: bool = False
    """True if the checks may remove what nobody uses (``--fix``)."""
    shared_memory: Path = Path("/dev/shm")

    @cached_property
    def answer(self) -> Reply | MsmonError:
        """The daemon's reply, or the error if there is none."""
        try:
            return self.ask()
        except MsmonError as error:
            return error

    @property
    def reply(self) -> Reply | None:
        """The daemon's reply, or None if there is none."""
        return self.answer if isinstance(self.answer, Reply) else None

    @cached_property
    def python_processes(self) -> list[SeenProcess]:
        """Every Python process that is visible here."""
        return [process for process in processes() if process.is_python]

"""What the checks look at: environment, processes, and the daemon's answer, asked for once."""

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
    """The place that is examined. ``ask`` gets the daemon's status or raises MsmonError."""

    environ: Mapping[str, str]
    ask: Callable[[], Reply]
    remote: bool = False
    """Whether the daemon that is asked is on another machine."""
    fix: bool = False
    """Whether what can safely be removed may be removed."""
    shared_memory: Path = Path("/dev/shm")

    @cached_property
    def answer(self) -> Reply | MsmonError:
        """What the daemon said, or why it could not be asked."""
        try:
            return self.ask()
        except MsmonError as error:
            return error

    @property
    def reply(self) -> Reply | None:
        """What the daemon said, None when it could not be asked."""
        return self.answer if isinstance(self.answer, Reply) else None

    @cached_property
    def python_processes(self) -> list[SeenProcess]:
        """Every Python process that can be seen from here."""
        return [process for process in processes() if process.is_python]

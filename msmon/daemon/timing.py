"""How often agents report, and what follows from their silence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Everything derives from one number, so that tests can run a fast daemon."""

    heartbeat_s: float = 2.0
    keep_gone_s: float = 600.0
    """How long processes that are gone, and closed sessions, stay known."""

    @property
    def lost_after_s(self) -> float:
        """Silence after which a process is lost."""
        return 4 * self.heartbeat_s

    @property
    def grace_s(self) -> float:
        """Time after the loss until the outputs of its sessions are closed."""
        return 5 * self.heartbeat_s

    @property
    def check_interval_s(self) -> float:
        """Time between two looks at what is overdue."""
        return self.heartbeat_s / 4

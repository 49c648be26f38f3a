"""The time limits of the daemon: how often agents report, and how long silence may last."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """All limits follow from the heartbeat, so that tests can run a fast daemon."""

    heartbeat_s: float = 2.0
    """Time between two messages of an agent about its status."""
    keep_gone_s: float = 600.0
    """How long ``status`` shows processes that have ended, and sessions that are closed."""

    @property
    def lost_after_s(self) -> float:
        """Silence after which a process counts as lost."""
        return 4 * self.heartbeat_s

    @property
    def grace_s(self) -> float:
        """Time between the loss of a process and the end of its sessions in the outputs.

        A process that comes back within this time continues its sessions.
        """
        return 5 * self.heartbeat_s

    @property
    def check_interval_s(self) -> float:
        """Time between two searches for lost processes."""
        return self.heartbeat_s / 4

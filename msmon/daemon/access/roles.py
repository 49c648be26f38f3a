"""What a peer may be to a daemon, and which messages each role may send."""

from __future__ import annotations

import enum

from msmon.bus import messages
from msmon.bus.messages import Message


class Role(enum.Enum):
    """What a peer is to the daemon."""

    AGENT = "agent"
    """Registers processes and pushes their data."""
    VIEWER = "viewer"
    """Asks."""
    OPERATOR = "operator"
    """Everything, for every process."""
    USER = "user"
    """A local user: agent for own processes, asks, and commands own processes only."""


KEY_ROLES = (Role.AGENT, Role.VIEWER, Role.OPERATOR)
"""The roles that a remote client's key can have."""

_PUSHES = frozenset({Role.AGENT, Role.USER, Role.OPERATOR})
_ASKS = frozenset({Role.VIEWER, Role.USER, Role.OPERATOR})
_COMMANDS = frozenset({Role.USER, Role.OPERATOR})

ROLES_FOR: dict[type[Message], frozenset[Role]] = {
    messages.Hello: frozenset(Role),
    messages.Goodbye: _PUSHES,
    messages.Status: _PUSHES,
    messages.Answer: _PUSHES,
    messages.SessionOpened: _PUSHES,
    messages.Records: _PUSHES,
    messages.WindowReport: _PUSHES,
    messages.WindowSoFar: _PUSHES,
    messages.SessionNote: _PUSHES,
    messages.GapReport: _PUSHES,
    messages.SessionClosed: _PUSHES,
    messages.StatusRequest: _ASKS,
    messages.VersionRequest: _ASKS,
    messages.WindowsRequest: _ASKS,
    messages.MonitorRequest: _COMMANDS,
    messages.TraceRequest: _COMMANDS,
}
"""Who may send which message. What is not listed here is taken from nobody."""

REGISTERS = _PUSHES
"""Who may say hello for a process."""

COMMANDS = (messages.MonitorRequest, messages.TraceRequest)
"""Messages that change something in processes; each one is in the audit log."""

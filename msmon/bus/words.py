"""The words of the protocol: every field with few values, as an enumeration.

A member is also the text that crosses the wire and that ``--json`` shows, so
``row.state == "idle"`` is true for ``ProcessState.IDLE``. Fields are declared as
``Union[ProcessState, Word]``: a newer side may use a word that this one does not know, which then
stays a plain text and is shown as it came.
"""

from __future__ import annotations

from msmon.vocabulary import Vocabulary


class ProcessState(Vocabulary):
    """What a process does, as its heartbeat and the rows of a status say."""

    IDLE = "idle"
    STARTING = "starting"
    MONITORING = "monitoring"
    PAUSED = "paused"
    """Monitoring makes way for a trace."""
    STOPPING = "stopping"
    FAILED = "failed"
    TRACING = "tracing"
    WAITING = "waiting"
    """It makes no step itself, and has started processes that do; commands are for those."""
    CARRIER = "carrier"
    """A framework's helper takes commands for ranks without an agent."""
    UNKNOWN = "unknown"
    """No heartbeat has come yet; or nothing is known of what was asked for."""
    SILENT = "silent"
    """It says nothing, but it runs: native code keeps Python's lock, or it is stopped."""
    LOST = "lost"
    """It fell silent and is gone, or cut off."""
    ENDED = "ended"
    """It said goodbye."""


GONE = (ProcessState.LOST, ProcessState.ENDED)


class TraceState(Vocabulary):
    """What a detailed trace is doing. It holds the process's profiler while READY or RUNNING."""

    IDLE = "idle"
    """No trace was asked for yet."""
    READY = "ready"
    """Accepted; its first step is still to come."""
    RUNNING = "running"
    PARSING = "parsing"
    """All steps are on record and the files are being written."""
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINISHED = (TraceState.DONE, TraceState.FAILED, TraceState.CANCELLED)


class Outcome(Vocabulary):
    """How a request went, all processes together."""

    OK = "ok"
    PARTIAL = "partial"
    """Some processes failed."""
    FAILED = "failed"
    """All of them failed."""
    NONE_REGISTERED = "none-registered"
    NONE_MATCHED = "none-matched"
    LOST = "lost"
    """What matched is gone since."""


class MonitorAction(Vocabulary):
    """What ``npu-monitor`` asks for."""

    START = "start"
    UPDATE = "update"
    STOP = "stop"


class TraceAction(Vocabulary):
    """What ``nputrace`` asks for."""

    START = "start"
    CANCEL = "cancel"


class AgentAction(Vocabulary):
    """What a command has an agent do: one step of what a request asks for."""

    START_MONITORING = "monitor.start"
    UPDATE_MONITORING = "monitor.update"
    STOP_MONITORING = "monitor.stop"
    START_TRACE = "trace.start"
    CANCEL_TRACE = "trace.cancel"


MONITORING_ACTIONS = {
    MonitorAction.START: AgentAction.START_MONITORING,
    MonitorAction.UPDATE: AgentAction.UPDATE_MONITORING,
    MonitorAction.STOP: AgentAction.STOP_MONITORING,
}
"""What ``npu-monitor`` asks for → what each agent is told."""

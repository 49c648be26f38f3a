"""The agent of one process, put together: collector, link, tracer, and what lies between them."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

import msmon
from msmon.agent.agent_log import AgentLog
from msmon.agent.collector import Collector
from msmon.agent.link.notices import Notices
from msmon.agent.link.pending import PendingCommand, PendingCommands, SeenRequests
from msmon.agent.link.thread import Link
from msmon.agent.link.uplink import Uplink
from msmon.agent.ranks import this_process as process
from msmon.agent.steps.counter import StepCounter
from msmon.agent.tracing.control import TraceControl
from msmon.agent.tracing.pause import MonitorPause
from msmon.agent.tracing.tracer import Tracer
from msmon.bus.endpoints import local_endpoint
from msmon.bus.headroom import hold_standard_descriptors
from msmon.bus.messages import Hello, Status
from msmon.bus.rows import TraceRow
from msmon.bus.words import AgentAction, ProcessState, TraceState
from msmon.sessions import ProcessInfo

SESSION_END_LIMIT_S = 0.7
"""How long the exit of the job may be held up to end a running session."""

FLUSH_LIMIT_S = 0.3
"""How long it may be held up to send what is left."""

MSPTI_LIMIT_S = 5.0
"""How long it may be held up by a call into MSPTI that has not returned. The job would crash if
it ended within the call. ``msptiUnsubscribe`` takes 1 s and more with some drivers."""


class Agent:
    """The agent of one process. Its parts have the state; each says which thread writes it.

    ``_identity`` is written by the link's thread, ``_framework_trace`` by the one that trains;
    both are replaced as a whole.
    """

    def __init__(self, identity: ProcessInfo, steps: StepCounter) -> None:
        self._identity = identity
        self._steps = steps
        hold_standard_descriptors()  # before the first descriptor of ours is made
        log = AgentLog.from_environment(os.environ)
        self._notices = Notices()
        self._seen = SeenRequests()
        self._framework_trace = TraceRow()
        self._uplink = Uplink(self._notices.wake)
        pause = MonitorPause(lambda: self._collector.look_at_pause())
        self._tracer = Tracer(steps, log, self._notices.status_changed, pause)
        self._collector = Collector(
            self._uplink,
            steps,
            log,
            self._notices.status_changed,
            self._notices.add_answer,
            TraceControl(self._tracer, steps, lambda: self._identity),
            pause,
        )
        self._link = Link(
            lambda: local_endpoint(os.environ),
            self._hello,
            self._status,
            self._uplink,
            self._notices,
            PendingCommands(self._collector.submit, lambda: self._collector.stuck_in, self._seen),
            log,
        )

    def start(self) -> None:
        """Start both threads. Raises RuntimeError when the process can't start any more."""
        self._collector.start()  # first: a process that is registered must be able to answer
        self._link.start()

    @property
    def identity(self) -> ProcessInfo:
        """Who this process is."""
        return self._identity

    @property
    def is_monitoring(self) -> bool:
        """Whether an npu-monitor session runs, as far as is known at this moment."""
        return self._collector.state.state is ProcessState.MONITORING

    @property
    def trace_holder(self) -> str:
        """The trace that waits or runs in this process; empty when there is none."""
        return self._tracer.holder

    def submit(self, action: AgentAction, fields: dict[str, Any], request_id: str) -> None:
        """Queue a command that the framework has delivered; nobody waits for an answer."""
        if self._seen.is_new(request_id):
            self._collector.submit(PendingCommand("", action, fields, request_id))

    def note_framework_trace(self, trace: TraceRow) -> None:
        """Keep for the next heartbeat what the framework says of a trace of its own."""
        self._framework_trace = trace

    def shut_down(self, at_exit: bool = False) -> None:
        """End both threads; a running session is ended and sent, in bounded time.

        A trace that runs is closed first and written, which takes as long as it takes.
        ``at_exit``: the process ends too, so no call into MSPTI may be left running.
        """
        self._tracer.end_early()
        busy = self._collector.busy
        self._collector.shut_down(at_exit)
        ended = self._collector.join(SESSION_END_LIMIT_S if busy else FLUSH_LIMIT_S)
        if at_exit and not ended:
            left = self._collector.leave_mspti(MSPTI_LIMIT_S)
            ended = self._collector.join(SESSION_END_LIMIT_S if left else 0.0)
        self._link.shut_down(FLUSH_LIMIT_S)
        if self._link.join(2 * FLUSH_LIMIT_S) and ended:
            self._notices.close()

    def leave_mspti(self) -> None:
        """Wait until no call into MSPTI runs, since the process ends; see ``MSPTI_LIMIT_S``."""
        self._collector.leave_mspti(MSPTI_LIMIT_S)

    def _hello(self) -> Hello:
        self._identity = process.with_framework(self._identity)
        return Hello(msmon.__version__, "agent", self._identity)

    def _status(self) -> Status:
        now = self._collector.state
        trace = self._tracer.progress
        traces = trace.state is TraceState.RUNNING
        if trace.state is TraceState.IDLE:  # none of ours yet, perhaps one of the framework's own
            trace = self._framework_trace
        self._steps.measure()
        return Status(
            state=ProcessState.TRACING if traces else now.state,
            step=self._steps.current,
            step_age_s=self._steps.age_s,
            session_id=now.session_id,
            settings=now.settings,
            unavailable_kinds=now.unavailable_kinds,
            counts=now.counts,
            stuck_in=self._collector.stuck_in,
            cpu_s=now.cpu_s + self._link.cpu_s,
            library=now.library,
            flush_age_s=_age_s(now.flushed_monotonic_s),
            problem=now.problem,
            trace=dataclasses.replace(
                trace, step_s=self._steps.step_s, steps_are=self._steps.counts
            ),
        )


def _age_s(monotonic_s: float | None) -> float:
    return -1.0 if monotonic_s is None else max(0.0, time.monotonic() - monotonic_s)

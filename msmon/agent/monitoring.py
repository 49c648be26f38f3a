"""Monitoring in this process: at most one session, started, changed, paused and ended.

Everything here runs on the collector's thread, except what says otherwise.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msmon.agent import imports, installed
from msmon.agent.agent_log import AgentLog
from msmon.agent.link.uplink import Uplink
from msmon.agent.session.answers import session_answer, totals
from msmon.agent.steps.counter import StepCounter
from msmon.agent.tracing.pause import MonitorPause
from msmon.bus.messages import Answer
from msmon.bus.words import ProcessState
from msmon.errors import CommandRefused, MsmonError, UsageError
from msmon.recording import loading as library
from msmon.recording.calls import MsptiCall
from msmon.records.kinds import format_kinds
from msmon.sessions import Counts, MonitorSettings

if TYPE_CHECKING:
    from msmon.agent.session.session import MonitoringSession
    from msmon.recording.recorder import Recorder

LOOK_FOR_NUMPY_S = 1.0
"""Time between two looks whether the job has imported numpy."""

_WITH_NUMPY = (
    "msmon.agent.session.session",
    "msmon.agent.link.payloads",
    "msmon.recording.recorder",
)
"""Modules that import numpy, and with it what a session needs."""


class Monitoring:
    """The session of this process, and the recorder that sessions share.

    Written by the collector's thread, except ``_calls_forbidden``. ``phase`` and
    ``call_in_progress`` may be read from any.
    ``on_phase`` is called where a phase begins that may last, so that others hear of it.
    """

    def __init__(
        self,
        uplink: Uplink,
        steps: StepCounter,
        log: AgentLog,
        pause: MonitorPause,
        on_phase: Callable[[], None],
    ) -> None:
        self.phase = ProcessState.IDLE
        """IDLE, STARTING, MONITORING, PAUSED or STOPPING."""
        self.session: MonitoringSession | None = None
        self.problem = ""
        """Why this process can't be monitored, or how the last session failed; empty if neither."""
        self.library = ""
        """Which MSPTI library is in use and why."""
        self.last_counts = Counts()
        """Those of the session that has ended last."""
        self._uplink = uplink
        self._steps = steps
        self._log = log
        self._pause = pause
        self._on_phase = on_phase
        self._awaits_numpy = True
        """Whether the modules that a session needs are still to be imported."""
        self._given_up: MonitoringSession | None = None
        """A session that failed and of which nobody who asked to stop it has been told."""
        self._loading: MsptiCall | None = None
        self._calls_forbidden = False
        """Set by the thread that ends the process."""
        self._recorder: Recorder | None = None

    @property
    def call_in_progress(self) -> MsptiCall | None:
        """The call into MSPTI or the loader that has not returned yet; for any thread."""
        recorder = self._recorder
        return self._loading or (recorder.call_in_progress if recorder else None)

    def forbid_calls(self) -> None:
        """Let no further call into MSPTI begin, because the process ends; for any thread."""
        self._calls_forbidden = True  # before the look: else a recorder made now would be missed
        recorder = self._recorder
        if recorder is not None:
            recorder.forbid_calls()

    @property
    def calls_are_over(self) -> bool:
        """Whether no call into MSPTI or the loader runs and none can begin; for any thread."""
        recorder = self._recorder
        over = recorder.calls_are_over if recorder is not None else self._calls_forbidden
        return over and self._loading is None

    def look_for_library(self) -> None:
        """Find out which MSPTI library there is, before anybody asks for monitoring."""
        try:
            self.library = library.describe()
        except (MsmonError, OSError) as error:
            self.problem = str(error)
            self._log.write(self.problem)

    # --- commands -------------------------------------------------------------------------

    def start(self, fields: dict[str, Any]) -> Answer:
        """Begin a session. Raises CommandRefused, UsageError and what MSPTI's start raises."""
        if self.session is not None:
            raise CommandRefused(
                f"monitoring runs already (session {self.session.session_id})",
                "change it with update, or end it with stop",
            )
        settings = MonitorSettings.from_fields(fields)
        self._enter(ProcessState.STARTING)
        try:
            self._load_modules()
            from msmon.agent.session.session import MonitoringSession

            session = MonitoringSession(settings, self._open_recorder(), self._uplink, self._steps)
            session.start()
        except MsmonError as error:
            self.problem = str(error)
            self.phase = ProcessState.IDLE
            raise
        self.problem = ""
        self._given_up = None
        self.session = session
        self.phase = ProcessState.MONITORING
        kinds = format_kinds(session.recorded_kinds)
        self._log.write(f"session {_shown(session)} started: {kinds}")
        return session_answer(session, f"monitoring started: {kinds}")

    def update(self, fields: dict[str, Any]) -> Answer:
        """Change the settings that ``fields`` mentions. Raises CommandRefused and UsageError."""
        session = self.session
        if session is None:
            raise CommandRefused("monitoring does not run in this process", "start it first")
        session.update(fields)
        changed = ", ".join(f"{name}={fields[name]!r}" for name in sorted(fields))
        return session_answer(session, f"monitoring updated: {changed or 'nothing was mentioned'}")

    def stop(self, fields: dict[str, Any]) -> Answer:
        """End the session, if there is one. Raises UsageError."""
        if fields:
            raise UsageError(f"stop takes no options, got {', '.join(sorted(fields))}")
        session = self.session
        if session is None:
            return self._nothing_to_stop()
        self.end("stopped")
        return session_answer(session, f"monitoring stopped: {totals(session)}")

    def _nothing_to_stop(self) -> Answer:
        given_up, self._given_up = self._given_up, None
        if given_up is None:
            return Answer(True, "monitoring does not run in this process; nothing to stop")
        text = f"monitoring had ended by itself: {self.problem}; {totals(given_up)}"
        return replace(session_answer(given_up, text), ok=False)

    # --- between commands -----------------------------------------------------------------

    @property
    def next_tick_s(self) -> float | None:
        """When :meth:`tick` is to be called, on the monotonic clock; None: never."""
        if self.session is not None:
            return self.session.next_tick_s
        return time.monotonic() + LOOK_FOR_NUMPY_S if self._awaits_numpy else None

    def tick(self) -> None:
        """Take what was recorded, or end a session whose time is over.

        Without a session, import what it will need once the job itself has imported numpy. The
        first start then takes less time, and needs no file that an upgrade of msmon may have
        replaced meanwhile.
        """
        if self.session is None:
            if self._awaits_numpy and _job_has_numpy():
                with contextlib.suppress(CommandRefused):  # a start will say so
                    self._load_modules()
            return
        if self.session.due:
            self.end("duration")
            return
        problem = self.session.problem
        self.session.tick()
        if self.session.problem != problem:
            self._log.write(self.session.problem)

    def follow_pause(self) -> None:
        """Make way for a trace that wants it, and go on when none does any more.

        Looks again after each turn: stopping and starting MSPTI takes its time, and what is
        wanted may change meanwhile.
        """
        try:
            while self._pause.wanted != self._pause.granted:
                if self._pause.wanted:
                    self._rest()
                    self._pause.grant()
                elif self._pause.take_back():
                    self._go_on()
        except Exception:
            self.give_up()  # else the session would rest for ever
            raise

    def _rest(self) -> None:
        if self.session is not None:
            self.session.pause()
            self.phase = ProcessState.PAUSED

    def _go_on(self) -> None:
        session = self.session
        if session is None or not session.paused:
            return
        try:
            session.resume()
        except MsmonError as error:
            session.problem = f"monitoring could not go on after the trace: {error.message}"
            self.end("failed")
        else:
            self.phase = ProcessState.MONITORING

    def end(self, reason: str, at_exit: bool = False) -> None:
        """End the session, if there is one, and deliver all that it holds.

        ``at_exit``: the process ends; see :meth:`Recorder.ending_with_process`.
        """
        session = self.session
        if session is None:
            return
        self._enter(ProcessState.STOPPING)
        session.stop(reason, at_exit)
        self.session = None
        self.phase = ProcessState.IDLE
        self.last_counts = session.counts()
        self.problem = session.problem
        self._log.write(f"session {_shown(session)} ended: {reason}")

    def give_up(self) -> None:
        """End the session after an unforeseen failure; what was not read yet is counted as lost."""
        session, self.session = self.session, None
        self.phase = ProcessState.IDLE
        if session is not None:
            self._given_up = session
            session.abandon()
            self.last_counts = session.counts()
        elif self._recorder is not None:
            self._recorder.abandon()

    def _enter(self, phase: ProcessState) -> None:
        self.phase = phase
        self._on_phase()

    def _load_modules(self) -> None:
        """Import the modules of a session; numpy is not loaded before.

        Raises CommandRefused where they would be those of another msmon.
        """
        self._awaits_numpy = False
        if not sys.modules.keys() >= {*_WITH_NUMPY}:
            installed.require_unchanged()
        with imports.before_forks():
            for name in _WITH_NUMPY:
                importlib.import_module(name)
        import numpy as np

        np.seterr(all="ignore")  # for this thread only: odd records must not print warnings

    def _open_recorder(self) -> Recorder:
        if self._recorder is None:
            self._loading = MsptiCall("loading libmspti.so", time.monotonic())
            try:
                self._recorder, self.library = library.open_recorder("npu-monitor")
                if self._calls_forbidden:
                    self._recorder.forbid_calls()
            finally:
                self._loading = None
        return self._recorder


def _job_has_numpy() -> bool:
    """Whether numpy is imported, all of it. A look at its spec tells: importlib keeps it there."""
    spec = getattr(sys.modules.get("numpy"), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


def _shown(session: MonitoringSession) -> str:
    """Return enough of a session's id to tell it from others; the group may read the log."""
    return session.session_id[:8]

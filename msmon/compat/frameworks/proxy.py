"""``PyDynamicMonitorProxy``: the five methods through which torch_npu and MindSpore drive a
monitor.

Who calls what:

* A *helper* process, which the framework forks from one rank of a host, calls ``init_dyno``
  once and then ``poll_dyno`` for ever. It hands each text that it gets to all ranks of the
  host through shared memory. For the daemon the helper is a *carrier* of commands.
* Each rank calls ``enable_dyno_npu_monitor`` with that text, on the thread that trains.
* One rank calls ``update_profiler_status``, on the thread that trains; the helper calls it
  once more when it ends.
* Each rank calls ``finalize_dyno`` when it exits.

No method raises, and none waits longer than its docstring says. Nothing is made before the
first call: the module is imported before the fork, and sockets and threads do not survive it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msmon.agent import lifecycle
from msmon.agent.agent_log import AgentLog
from msmon.agent.steps.counter import MAX_STEP
from msmon.bus.rows import TraceRow
from msmon.bus.words import MONITORING_ACTIONS, MonitorAction, TraceState
from msmon.compat.frameworks.config_text import monitor_command
from msmon.settings.options import MONITOR_OPTIONS

if TYPE_CHECKING:
    from msmon.compat.frameworks.carrier import Carrier

Method = TypeVar("Method", bound=Callable[..., Any])

UNINITIALIZED = -1
TRACE_STATES = {
    UNINITIALIZED: "uninitialized",
    0: TraceState.IDLE,
    1: TraceState.RUNNING,
    2: TraceState.READY,
}
"""``profiler_status`` as the frameworks number it."""
UPDATABLE = frozenset(option.name for option in MONITOR_OPTIONS if option.updatable)


def _never_raises(otherwise: Any) -> Callable[[Method], Method]:
    """Return a decorator that logs what a method raises, and then returns ``otherwise``."""

    def wrap(method: Method) -> Method:
        @functools.wraps(method)
        def safe(*arguments: Any) -> Any:
            try:
                return method(*arguments)
            except Exception as error:  # noqa: BLE001  boundary: torch_npu's helper would die
                text = f"{method.__name__}: {type(error).__name__}: {error}"
                AgentLog.from_environment(os.environ).write(text)
                return otherwise

        return cast(Method, safe)

    return wrap


class DynamicMonitorProxy:
    """The object behind the name ``PyDynamicMonitorProxy``.

    The frameworks write ``proxy = PyDynamicMonitorProxy()`` and expect the one instance, so
    calling the object returns it. ``_carrier`` is written in the helper, ``_last_config`` by
    the thread that trains.
    """

    def __init__(self) -> None:
        self._carrier: Carrier | None = None
        self._last_config: dict[str, str] = {}

    def __call__(self) -> DynamicMonitorProxy:
        return self

    @_never_raises(True)
    def init_dyno(self, npu_id: int) -> bool:
        """Begin to take commands for the rank that has forked this process. Returns at once.

        Returns True even when no daemon runs: the frameworks ask only once and give up for
        good on False, and a daemon may be started later. ``npu_id`` is the global rank, -1 if
        unknown, despite its name.
        """
        from msmon.compat.frameworks.carrier import Carrier

        if self._own_carrier() is None:
            self._carrier = Carrier(npu_id)
        return True

    @_never_raises("")
    def poll_dyno(self) -> str:
        """Return the text of the next command, "" where none comes within half a second.

        It waits that long because MindSpore asks again without a pause.
        """
        carrier = self._own_carrier()
        return carrier.poll() if carrier is not None else ""

    @_never_raises(None)
    def enable_dyno_npu_monitor(self, config_map: Mapping[str, str]) -> None:
        """Queue a command to this rank's agent and return.

        MindSpore hands over the same command at every step, so an unchanged one is dropped
        after a comparison. The first call starts the agent where there is none, which takes
        as long as the import of its modules.
        """
        if config_map == self._last_config:
            return
        self._last_config = dict(config_map)
        command = monitor_command(config_map)
        agent = lifecycle.agent_of_rank()
        if agent is None or not command.is_for(agent.identity.rank, agent.identity.launch):
            return
        action, fields = command.action, command.fields
        if action is None:
            action = MonitorAction.UPDATE if agent.is_monitoring else MonitorAction.START
        if action is MonitorAction.UPDATE and not command.request_id:
            fields = {name: value for name, value in fields.items() if name in UPDATABLE}
        if action is MonitorAction.STOP:
            fields = {}
        agent.submit(MONITORING_ACTIONS[action], fields, command.request_id)

    @_never_raises(None)
    def update_profiler_status(self, status: Mapping[str, str]) -> None:
        """Keep what the framework says of its own trace; the next heartbeat carries it.

        The helper calls this with the state "uninitialized" when it ends. It then says goodbye
        to the daemon, within a second, because the frameworks end it without any clean-up.
        """
        state = _number(status, "profiler_status")
        carrier = self._own_carrier()
        if carrier is not None:
            if state == UNINITIALIZED:
                carrier.leave()
            return
        # This starts no agent: the daemon would then send commands to this rank's agent instead
        # of the carrier, and the other ranks of the host, which have no agent, would get none.
        agent = lifecycle.current_agent()
        if agent is not None:
            step = _number(status, "current_step")
            lifecycle.report_step(step, "what the framework's dynamic profiler reports")
            agent.note_framework_trace(
                TraceRow(
                    TRACE_STATES.get(state, "unknown"),
                    start_step=_number(status, "start_step"),
                    stop_step=_number(status, "stop_step"),
                )
            )

    @_never_raises(None)
    def finalize_dyno(self) -> None:
        """End this rank's agent; a running session is ended and sent. Takes about 1 s at most."""
        lifecycle.shutdown()

    def _own_carrier(self) -> Carrier | None:
        """Return the carrier that this process made; a copy from before a fork is not its own."""
        carrier = self._carrier
        return carrier if carrier is not None and carrier.pid == os.getpid() else None


def _number(status: Mapping[str, str], name: str) -> int:
    """Return a number that the framework reports as text; -1 if it is no number or too big."""
    try:
        number = int(status[name])
    except (KeyError, ValueError):
        return UNINITIALIZED
    return number if abs(number) <= MAX_STEP else UNINITIALIZED


shared = DynamicMonitorProxy()
"""The instance that both packages export."""

"""``PyDynamicMonitorProxy``: the five methods through which torch_npu and MindSpore drive a
monitor.

The frameworks call ``init_dyno`` and ``poll_dyno`` in a helper process that they fork, the
others in the ranks, on the thread that trains, and the last one at exit. None raises, and
none waits longer than its docstring says. Nothing is made before the first call, so that
nothing made before a fork is used after it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msmon.agent import lifecycle
from msmon.agent.log import AgentLog
from msmon.compat.frameworks.config_text import monitor_command
from msmon.settings.options import MONITOR_OPTIONS

if TYPE_CHECKING:
    from msmon.compat.frameworks.carrier import Carrier

Method = TypeVar("Method", bound=Callable[..., Any])

UNINITIALIZED = -1
TRACE_STATES = {UNINITIALIZED: "uninitialized", 0: "idle", 1: "running", 2: "ready"}
"""``profiler_status`` as the frameworks number it."""
UPDATABLE = frozenset(option.name for option in MONITOR_OPTIONS if option.updatable)


def _never_raises(otherwise: Any) -> Callable[[Method], Method]:
    """Make a method log what it raises and return ``otherwise`` then."""

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
    """The object behind the name; calling it gives itself, as the frameworks expect."""

    def __init__(self) -> None:
        self._carrier: Carrier | None = None
        self._last_config: dict[str, str] = {}

    def __call__(self) -> DynamicMonitorProxy:
        return self

    @_never_raises(True)
    def init_dyno(self, npu_id: int) -> bool:
        """Begin to take commands for the rank that has forked this process. Returns at once.

        True even without a daemon: the frameworks ask only once, and one may come later.
        ``npu_id`` is the global rank, -1 if unknown.
        """
        from msmon.compat.frameworks.carrier import Carrier

        if self._own_carrier() is None:
            self._carrier = Carrier(npu_id)
        return True

    @_never_raises("")
    def poll_dyno(self) -> str:
        """Return the text of the next command, "" where none comes within half a second."""
        carrier = self._own_carrier()
        return carrier.poll() if carrier is not None else ""

    @_never_raises(None)
    def enable_dyno_npu_monitor(self, config_map: Mapping[str, str]) -> None:
        """Queue a command to this rank's agent; the same text again costs a comparison.

        MindSpore repeats it at every step. The first call starts an agent where there is
        none, which takes as long as the import of its modules.
        """
        if config_map == self._last_config:
            return
        self._last_config = dict(config_map)
        command = monitor_command(config_map)
        agent = lifecycle.agent_of_rank()
        if agent is None or not command.is_for(agent.identity.rank, agent.identity.launch):
            return
        action, fields = command.action, command.fields
        if action == "apply":
            action = "update" if agent.is_monitoring else "start"
        if action == "update" and not command.request_id:
            fields = {name: value for name, value in fields.items() if name in UPDATABLE}
        agent.submit(f"monitor.{action}", {} if action == "stop" else fields, command.request_id)

    @_never_raises(None)
    def update_profiler_status(self, status: Mapping[str, str]) -> None:
        """Note what the framework says of its own trace; the next heartbeat carries it.

        In the helper, "uninitialized" is its last word: there it says goodbye, within a second.
        """
        state = _number(status, "profiler_status")
        carrier = self._own_carrier()
        if carrier is not None:
            if state == UNINITIALIZED:
                carrier.leave()
            return
        agent = (
            lifecycle.current_agent()
        )  # none is started: that would cut other ranks off their carrier
        if agent is not None:
            agent.note_framework_trace(
                {
                    "state": TRACE_STATES.get(state, "unknown"),
                    "start_step": _number(status, "start_step"),
                    "stop_step": _number(status, "stop_step"),
                }
            )

    @_never_raises(None)
    def finalize_dyno(self) -> None:
        """End this rank's agent; a running session is ended and sent. Takes about 1 s at most."""
        lifecycle.shutdown()

    def _own_carrier(self) -> Carrier | None:
        """Return this very process's carrier: one that a parent made is not ours."""
        carrier = self._carrier
        return carrier if carrier is not None and carrier.pid == os.getpid() else None


def _number(status: Mapping[str, str], name: str) -> int:
    try:
        return int(status[name])
    except (KeyError, ValueError):
        return UNINITIALIZED


shared = DynamicMonitorProxy()
"""The one proxy behind both package names."""

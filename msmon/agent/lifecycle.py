"""Start and end of the agent in this process: init, step, shutdown, fork, exit.

Nothing here raises into the training process, waits for the daemon, or prints.
"""

from __future__ import annotations

import atexit
import dataclasses
import operator
import os
import time
from typing import Any

import zmq

from msmon.agent.agent import Agent
from msmon.agent.agent_log import AgentLog
from msmon.agent.ranks import evidence as ranks
from msmon.agent.ranks import this_process as process
from msmon.agent.steps import sources as step_sources
from msmon.agent.steps.counter import MAX_STEP, StepCounter
from msmon.agent.steps.import_watch import ImportWatch
from msmon.agent.tracing import job_profilers
from msmon.errors import UsageError
from msmon.recording import holder
from msmon.threads import Lock

MAX_NUMBER = 2**31 - 1
"""Largest rank, size of the world, and device."""

_steps = StepCounter()
_watch: ImportWatch | None = None
_agent: Agent | None = None
_starting = Lock()
_former: list[Agent] = []
"""Agents that :func:`shutdown` has ended. A call into MSPTI may have outlived its limit."""
_left_to_parent: list[Agent] = []
"""In a forked child: the parent's agent, kept so that nothing of it is ever finalised."""

STEPS_OF_A_CHILD = 3
"""What a rank has started is a rank too from this step on. A helper makes fewer: one that
tries an optimizer, for example."""


def init(
    rank: int | None = None,
    local_rank: int | None = None,
    world_size: int | None = None,
    device: int | None = None,
    job_id: str | None = None,
) -> None:
    """Start the agent in this process; it registers with the daemon, now or when there is one.

    What is not given is taken from the launcher's environment variables. A second call does
    nothing. A missing daemon or library is no error: ``msmon status`` and the log under
    MSMONITOR_LOG_PATH tell of it. Raises UsageError for an argument of the wrong type or range.
    """
    given: dict[str, Any] = {
        "rank": rank,
        "local_rank": local_rank,
        "world_size": world_size,
        "device": device,
        "job_id": job_id,
    }
    _start({name: _checked(name, value) for name, value in given.items() if value is not None})


def _checked(name: str, value: Any) -> Any:
    """Return an argument of init as the daemon takes it. Raises UsageError."""
    if name == "job_id":
        if not isinstance(value, str) or len(value) > process.MAX_JOB_ID_CHARACTERS:
            limit = process.MAX_JOB_ID_CHARACTERS
            raise UsageError(f"init: job_id must be a text of up to {limit} characters")
        return value.encode("utf-8", "backslashreplace").decode()
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"init: {name} must be of type int, got {value!r}") from None
    if isinstance(value, bool) or not -1 <= number <= MAX_NUMBER:
        raise UsageError(f"init: {name} must be a number from -1 to {MAX_NUMBER}, got {value!r}")
    return number


def start_if_rank() -> None:
    """Start the agent in a process that behaves as a rank: it steps, or its framework calls in.

    Only where the environment asks for it, and not in what a rank has started.
    """
    environ = os.environ
    if ranks.is_asked_for(environ) and not _left_to_parent and not ranks.belongs_to_a_rank(environ):
        _start({})


def current_agent() -> Agent | None:
    """Return the agent of this process, if there is one."""
    return _agent


def agent_of_rank() -> Agent | None:
    """Return the agent, which is started now if this process is a rank; see start_if_rank."""
    if _agent is None:
        start_if_rank()
    return _agent


def step() -> None:
    """Note that a training step has ended.

    The first call starts the agent where the environment has MSMONITOR_USE_DAEMON=1.
    """
    if not _steps.explicit:
        _steps.advance_explicitly()
        return
    # StepCounter.advance once more, word for word: a call of it would cost the training loop
    # as much as all it does
    _steps.count += 1
    _steps.last_monotonic_s = now_s = time.monotonic()
    _steps.ended.append((_steps.count, now_s))
    at_boundary = _steps.at_boundary  # read once: a cancelled trace removes it meanwhile
    if at_boundary is not None:
        at_boundary()


def set_step(step: int) -> None:
    """Say that ``step`` training steps have been made, after loading a checkpoint of that step.

    The next call of :func:`step` makes it ``step + 1``. Raises UsageError for what is no
    whole number from 0 to 2**53.
    """
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= MAX_STEP:
        raise UsageError(f"set_step: {step!r} is not a number of steps")
    _steps.set(step)


def report_step(step: int, what: str) -> None:
    """Take a framework's own number of steps, of which ``what`` says where it comes from."""
    _steps.report(step, what)


def watch_steps() -> None:
    """Take steps from the frameworks that this process has imported or will import."""
    global _watch
    if _watch is None:
        report = AgentLog.from_environment(os.environ).write
        _watch = step_sources.watch(_steps, report, job_profilers.shared.on_import)
        _watch.start()


def _before_agent() -> None:
    """A process that steps is a rank, if the environment or the parent's agent asks for one."""
    environ = os.environ
    child = bool(_left_to_parent) or ranks.belongs_to_a_rank(environ)
    if child and _agent is None and _steps.count < STEPS_OF_A_CHILD:
        return
    _steps.at_boundary = None
    if _agent is None and (_left_to_parent or ranks.is_asked_for(environ)):
        _start({})


def shutdown() -> None:
    """End the agent: a running session is ended and its records sent. Takes about 1 s at most."""
    global _agent
    agent, _agent = _agent, None
    if agent is not None:
        _former.append(agent)
        agent.shut_down()


def _at_exit() -> None:
    """End the agent because the process ends, and leave no call into MSPTI running."""
    global _agent
    agent, _agent = _agent, None
    for former in _former:
        former.leave_mspti()
    if agent is not None:
        agent.shut_down(at_exit=True)


def _start(known: dict[str, Any]) -> None:
    """Start the agent unless there is one; ``known`` fields replace those that were found."""
    global _agent
    with _starting:
        if _agent is not None:
            return
        try:
            identity = dataclasses.replace(process.current_process(), **known)
            agent = Agent(identity, _steps)
            ranks.mark(os.environ)
            agent.start()
        except (RuntimeError, OSError, zmq.ZMQError) as error:
            # no more threads or descriptors, or the interpreter is shutting down
            AgentLog.from_environment(os.environ).write(f"the agent can't start: {error}")
        else:
            _agent = agent
            holder.announce_traces(lambda: agent.trace_holder)
            watch_steps()
            # as late as possible: hooks run in reverse, and the framework must still be there
            atexit.unregister(_at_exit)
            atexit.register(_at_exit)


def _drop_in_child() -> None:
    """Forget the parent's agent: its threads are not here, its sockets are not ours."""
    global _agent, _starting
    _starting = Lock()
    _left_to_parent.extend(_former)
    _former.clear()
    _steps.forget()
    if _agent is not None:
        _left_to_parent.append(_agent)
        _agent = None
        _steps.at_boundary = _before_agent
        holder.announce_traces(None)  # a trace of the parent does not run here
        job_profilers.shared.forget_traces()


_steps.at_boundary = _before_agent
os.register_at_fork(after_in_child=_drop_in_child)

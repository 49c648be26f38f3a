"""A process for a sink, as the daemon sees it: started, asked, ended when it hangs.

Below a root daemon it works with the rights of the user whose data it writes; see
:mod:`rights <msmon.daemon.outputs.rights>`. The other end is
:mod:`child <msmon.daemon.outputs.child>`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import pickle
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msmon
from msmon.daemon.access.owners import Owner
from msmon.daemon.outputs.child import Beginning
from msmon.daemon.outputs.child_answers import Channel, Done, Failed, Keep, Logged, decode
from msmon.daemon.outputs.delivery import Answer, ExportCheck, Forgetting, Opening, Request
from msmon.daemon.outputs.hosts import HostEnded
from msmon.daemon.outputs.rights import Limits, Rights, rights_for
from msmon.errors import MsmonError, SinkError
from msmon.sinks.base import Progress, Sink

CALL_LIMIT_S = 30.0
"""A process that does not answer for so long is ended and started anew."""

CHECK_LIMIT_S = 5.0
START_LIMIT_S = 30.0
CLOSE_LIMIT_S = 3.0
_REAP_S = 1.0

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from msmon.daemon.outputs.child import main; main(int(sys.argv[1]))"
)
_PASSED_ON = ("PATH", "LANG", "LANGUAGE", "TZ")
"""Environment of a process that is to become another user; and all of LC_… and LD_…."""

_log = logging.getLogger(__name__)


class ProcessHost:
    """A sink in a process of its own, with the rights of ``owner``; None: the daemon's own.

    The process is started with the first request, and again after it has died. The output's thread
    calls all methods but ``kill`` and writes all state. It must live as long as the process: when
    the thread that started it ends, the kernel ends the process (prctl(2), PR_SET_PDEATHSIG).
    """

    def __init__(
        self,
        sink_class: type[Sink],
        options: Mapping[str, Any],
        owner: Owner | None = None,
        limits: Limits | None = None,
        call_limit_s: float = CALL_LIMIT_S,
    ) -> None:
        self.generation = 0
        self._name = sink_class.NAME
        self._class_path = f"{sink_class.__module__}:{sink_class.__qualname__}"
        self._options = dict(options)
        self._owner = owner
        self._log_extra = {} if owner is None else {"owner": owner.name}
        """So that a log line counts against the share of its owner."""
        self._limits = limits
        self._call_limit_s = call_limit_s
        self._child: subprocess.Popen[bytes] | None = None
        self._unreaped: list[subprocess.Popen[bytes]] = []
        self._channel: Channel | None = None
        self._progress: dict[str, Progress] = {}

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._channel is not None

    def ready(self) -> None:
        """Start the process where none is alive. Raises SinkError or UsageError."""
        if self._child is not None and self._child.poll() is not None:
            self._end()
        if self._channel is None:
            self._start()

    def ask(self, request: Request) -> Answer:
        """Have the sink carry out a request.

        Raises what the sink raises, and HostEnded when its process ended meanwhile or did
        not answer in time.
        """
        self.ready()
        progress = Progress()
        if isinstance(request, Opening):
            progress = self._progress[request.session.session_id] = request.progress
            # a plain copy goes over; what the sink keeps comes back as messages
            request = dataclasses.replace(request, progress=Progress(request.progress.value))
        if isinstance(request, Forgetting):
            self._progress.pop(request.session_id, None)
        limit_s = CHECK_LIMIT_S if isinstance(request, ExportCheck) else self._call_limit_s
        try:
            return self._call(request, limit_s)
        except HostEnded as ended:
            if ended.hung or not isinstance(request, (Opening, ExportCheck)):
                raise
        # It may have died before it got the request, which a new process can carry out as well.
        self.ready()
        if isinstance(request, Opening):
            self._progress[request.session.session_id] = progress
            request = dataclasses.replace(request, progress=Progress(progress.value))
        return self._call(request, limit_s)

    def close(self) -> None:
        """Let the sink release everything, and wait for the end of its process."""
        try:
            if self._channel is not None and self._child is not None:
                self._channel.send(pickle.dumps(None), time.monotonic() + CLOSE_LIMIT_S)
                self._child.wait(CLOSE_LIMIT_S)
        except (OSError, subprocess.TimeoutExpired):
            _log.warning(
                "the process of output %s is ended: it does not close",
                self._name,
                extra=self._log_extra,
            )
        finally:
            self._end()

    def kill(self) -> None:
        """End the process; the thread that waits for its answer goes on. From any thread."""
        child = self._child
        if child is not None:
            child.kill()

    # --- the process ----------------------------------------------------------------------

    def _start(self) -> None:
        """Start the process, and have it take its rights on.

        Raises SinkError, also where it can't begin. Example: the user has as many processes as
        RLIMIT_NPROC allows.
        """
        rights = rights_for(self._owner) if self._owner is not None else None
        try:
            self._child, self._channel = _spawned(rights)
            self._progress = {}
            self.generation += 1
            beginning = Beginning(
                self._class_path, self._options, rights, self._limits, os.getpid()
            )
            self._call(beginning, START_LIMIT_S)
        except Exception as error:
            self._end()
            if not isinstance(error, OSError):
                raise
            whose = "" if self._owner is None else f" of {self._owner.name}"
            reason = error.strerror or str(error)
            raise SinkError(
                f"the process of output {self._name}{whose} can't be started: {reason}",
                "if there are too many processes, end some or raise the limit (ulimit -u, "
                "TasksMax); what waits is written then",
            ) from error

    def _call(self, message: Request | Beginning, limit_s: float) -> Answer:
        channel, until_s = self._channel, time.monotonic() + limit_s
        assert channel is not None
        try:
            channel.send(pickle.dumps(message, pickle.HIGHEST_PROTOCOL), until_s)
            answer = self._await_answer(channel, until_s)
        except TimeoutError:  # it does not answer, or does not even read
            self._end()
            reason = f"did not answer for {limit_s:g} s and was ended"
            raise HostEnded(f"the process of output {self._name} {reason}", hung=True) from None
        except ValueError as error:
            self._end()
            reason = f"was ended: {error}"
        except (EOFError, OSError):
            reason = f"ended ({self._end()})"
        else:
            if isinstance(answer, Failed):
                raise answer.error
            return answer.answer
        raise HostEnded(f"the process of output {self._name} {reason}")

    def _await_answer(self, channel: Channel, until_s: float) -> Done | Failed:
        """Take messages of the process until one is the answer, or the time is over."""
        while True:
            message = decode(channel.receive(until_s))
            if isinstance(message, Keep):
                channel.send(pickle.dumps(self._keep(message)), until_s)
            elif isinstance(message, Logged):
                level = min(message.level, logging.ERROR)
                _log.log(level, "%s: %s", self._name, message.text, extra=self._log_extra)
            else:
                return message

    def _keep(self, message: Keep) -> str:
        """Store a progress; returns what the process is told: nothing, or the problem."""
        progress = self._progress.get(message.session_id)
        if progress is None:
            return "no such session"
        try:
            progress.keep(message.value)
        except MsmonError as error:
            return error.message
        return ""

    def _end(self) -> str:
        """Close the socket and end the process. Returns how it ended."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        child, self._child = self._child, None
        if child is None:
            return "not running"
        child.kill()
        self._unreaped = [item for item in (*self._unreaped, child) if item.poll() is None]
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = child.wait(_REAP_S)
            return f"signal {-code}" if code < 0 else f"exit code {code}"
        return "it hangs in the kernel"  # and goes when its call returns


def _spawned(rights: Rights | None) -> tuple[subprocess.Popen[bytes], Channel]:
    """Return a new process that waits for its ``Beginning``, and the way to it. Raises OSError."""
    ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as unless_started, theirs:
        unless_started.enter_context(ours)
        # -I: neither the environment nor the working directory says what is imported
        isolated = ["-I"] if rights is not None else []
        child = subprocess.Popen(
            [
                *(sys.executable, *isolated, "-c", _BOOT),
                *(str(theirs.fileno()), json.dumps(_import_path())),
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if rights is None else subprocess.DEVNULL,
            env=_environment() if rights is not None else None,
            cwd="/",
            start_new_session=True,
        )
        unless_started.pop_all()
    return child, Channel(ours)


def _import_path() -> list[str]:
    """Return where the process may import from: what the daemon uses and only its user changes.

    The daemon may have been started in any directory, with that directory on its path, and
    imports later than the daemon did would find what somebody has put there since.
    """
    package = str(Path(msmon.__file__).parent.parent)
    return [package, *(entry for entry in sys.path if entry != package and _is_safe(entry))]


def _is_safe(entry: str) -> bool:
    if not os.path.isabs(entry):
        return False
    try:
        status = os.stat(entry)
    except OSError:
        return False
    mine = status.st_uid in (0, os.geteuid())
    return mine and not stat.S_IMODE(status.st_mode) & 0o022


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED_ON or name.startswith(("LC_", "LD_"))
    }

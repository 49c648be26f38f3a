"""Run as ``python at_limit.py UID``: outputs of a daemon whose user may make no more threads.

Prints a JSON list: what the outputs said at the limit, and what was acknowledged after it.
"""

from __future__ import annotations

import json
import resource
import sys
import time

from attacks.as_user import become

from msmon.daemon.access.owners import Owner
from msmon.daemon.outputs.delivery import Closing
from msmon.daemon.outputs.output import Output
from msmon.daemon.outputs.outputs import Outputs, OutputsConfig
from msmon.errors import MsmonError
from msmon.sessions import MonitorSettings, ProcessInfo, SessionEnd, SessionInfo
from msmon.sinks.base import SessionOutput, Sink
from msmon.sinks.sqlite import sink as _needed_later  # noqa: F401 - its user may not read it

LIMIT_S = 10.0


class Kept(Sink):
    NAME = "kept"
    HELP = "Keeps nothing."

    def open_session(self, session: SessionInfo) -> SessionOutput:
        return SessionOutput()

    def close_session(self, session_id: str, seq: int, end: SessionEnd) -> None:
        pass


def limit_processes(number: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (most if number < 0 else number, most))


def main(uid: int) -> list[object]:
    become(uid)
    owner, safe = Owner(f"uid {uid}", uid), []
    session = SessionInfo("s", ProcessInfo("node", 11, 1), MonitorSettings(), 5, owner.name)
    config = OutputsConfig((Output(Kept, {}),), state_directory=None)
    outputs = Outputs(config, lambda session_id, seq: safe.append(seq))
    said: list[object] = []

    def told(answer: object) -> None:
        said.append(answer.message if isinstance(answer, MsmonError) else "done")

    limit_processes(1)
    outputs.check_export("/tmp", "DB", owner, True, told)
    outputs.open_session(session, owner, told)
    outputs.put(Closing("s", 2, SessionEnd(9, "stopped")))
    outputs.check(time.monotonic())
    said.append(list(safe))
    limit_processes(-1)
    until_s = time.monotonic() + LIMIT_S
    while 2 not in safe and time.monotonic() < until_s:
        outputs.check(time.monotonic())
        time.sleep(0.02)
    outputs.close(5.0)
    return [*said, max(safe, default=0)]


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))

"""A process at its limits is left alone: libzmq would end it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from msmon.bus import headroom
from msmon.errors import BusError


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_is_room_here():
    assert run("from msmon.bus import headroom; print(headroom.require_headroom())") == "None\n"


@pytest.mark.parametrize("spare", [0, 3, 6, 9])
def test_an_agent_with_few_descriptors_left_does_not_end_the_job(spare, daemon):
    """The daemon is there, so that the connection is tried."""
    daemon.start()
    code = f"""
        import os, resource, time
        import msmon.agent.lifecycle
        limit = len(os.listdir("/proc/self/fd")) + {spare}
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        os.environ["MSMON_RUNTIME_DIR"] = {str(daemon.runtime)!r}
        import msmon
        msmon.init()
        time.sleep(0.5)
        print("still here")
    """
    assert run(code) == "still here\n"


def test_too_few_descriptors_are_an_error_that_names_the_limit():
    code = """
        import resource
        from msmon.bus.headroom import require_headroom
        from msmon.errors import BusError
        resource.setrlimit(resource.RLIMIT_NOFILE, (10, 10))
        try:
            require_headroom()
        except BusError as error:
            print(error.next_step)
    """
    assert "ulimit -n" in run(code)


def test_too_few_threads_are_an_error_that_names_the_limit(monkeypatch):
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(headroom.NativeThread, "start", refuse)
    with pytest.raises(BusError, match="threads") as caught:
        headroom.require_headroom()
    assert "ulimit -u" in caught.value.next_step

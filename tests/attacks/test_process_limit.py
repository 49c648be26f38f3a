"""A user, or a daemon, that has as many processes as the system allows (RLIMIT_NPROC)."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("process_limit")

LIMIT_S = 60.0


def test_a_user_at_the_limit_disturbs_nobody(victim, attack):
    """The limit counts the user's processes and holds for the output process too."""
    daemon = victim.job.daemon.pid
    usual = resource.prlimit(daemon, resource.RLIMIT_NPROC)
    resource.prlimit(daemon, resource.RLIMIT_NPROC, (1, usual[1]))
    try:
        with victim.recording():
            attack("exhaust_processes")
    finally:
        resource.prlimit(daemon, resource.RLIMIT_NPROC, usual)


def test_a_daemon_at_the_limit_refuses_clearly_and_goes_on_after_it(victim):
    """Threads count as processes do; the last message was taken at the limit."""
    uid = 1_300_000 + os.getpid()
    done = subprocess.run(
        [sys.executable, "-W", "error", str(Path(__file__).with_name("at_limit.py")), str(uid)],
        env=victim.environ,
        stdout=subprocess.PIPE,
        timeout=LIMIT_S,
        check=True,
    )
    check, opening, acknowledged, later = json.loads(done.stdout)
    assert check == "output sqlite can't be started: the daemon may make no more threads"
    assert opening == "done"  # the failure of an output of the daemon is its own affair
    assert (acknowledged, later) == ([], 2)

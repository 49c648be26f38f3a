"""A process is who the kernel says: claims are held against /proc of the connection's pid."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from msmon.agent.ranks.evidence import start_time
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.identity import confirmed, seen_by_kernel, still_runs
from msmon.daemon.access.roles import Role
from msmon.errors import CommandRefused
from msmon.sessions import ProcessInfo

USER = os.getuid()
CONTAINER = "ab" * 32
HOST = socket.gethostname()


def peer(pid: int, role: Role = Role.USER, uid: int = USER) -> Peer:
    return Peer(role, f"uid {uid}", f"uid {uid}", uid, pid)


def claim(pid: int, **fields) -> ProcessInfo:
    return ProcessInfo(socket.gethostname(), pid, start_time(pid), **fields)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
    yield process
    process.communicate()


def test_a_true_claim_is_taken(child):
    assert confirmed(claim(child.pid, rank=3), peer(child.pid), False, HOST).rank == 3


def test_the_uid_is_the_kernels(child):
    assert confirmed(claim(child.pid, uid=0), peer(child.pid, uid=4242), False, HOST).uid == 4242


def test_a_process_of_a_key_has_no_uid_here():
    remote = Peer(Role.AGENT, "key node7", "public key")
    assert confirmed(claim(os.getpid(), uid=0), remote, False, HOST).uid == -1


def test_the_pid_of_another_process_is_refused(child):
    with pytest.raises(CommandRefused, match=f"has the pid {child.pid}, not {os.getpid()}"):
        confirmed(claim(os.getpid()), peer(child.pid), False, HOST)


def test_another_start_time_is_refused(child):
    wrong = dataclasses.replace(claim(child.pid), start_time=7)
    with pytest.raises(CommandRefused, match="start time"):
        confirmed(wrong, peer(child.pid), False, HOST)


def test_a_start_time_that_the_process_could_not_read_is_no_contradiction(child):
    unread = dataclasses.replace(claim(child.pid), start_time=0)
    assert confirmed(unread, peer(child.pid), False, HOST)


def test_operators_are_believed(child):
    assert confirmed(claim(1), peer(child.pid, Role.OPERATOR), False, HOST).pid == 1


def test_a_carrier_speaks_for_the_process_that_started_it(child):
    assert confirmed(claim(os.getpid()), peer(child.pid), True, HOST).pid == os.getpid()


def test_a_carrier_of_a_process_that_did_not_start_it_is_refused(child):
    with pytest.raises(CommandRefused, match="has started this helper"):
        confirmed(claim(child.pid + 100_000), peer(child.pid), True, HOST)


def test_what_can_not_be_seen_stays_as_claimed(tmp_path):
    hidden = claim(os.getpid(), container=CONTAINER)
    assert confirmed(hidden, peer(11), False, HOST, tmp_path) == dataclasses.replace(
        hidden, uid=USER
    )


def test_a_process_on_the_daemons_host_has_the_daemons_host_name(child):
    elsewhere = dataclasses.replace(claim(child.pid), host="node-of-another")
    assert confirmed(elsewhere, peer(child.pid), False, HOST).host == HOST


def test_a_process_in_a_host_namespace_of_its_own_keeps_its_host_name(tmp_path):
    proc_entry(tmp_path, 4711, 2)
    for pid, namespace in (("4711", "uts:[1]"), ("self", "uts:[2]")):
        (tmp_path / pid / "ns").mkdir(parents=True)
        (tmp_path / pid / "ns" / "uts").symlink_to(namespace)
    inside = ProcessInfo("pod", 2, 77)
    assert confirmed(inside, peer(4711), False, HOST, tmp_path).host == "pod"


def test_a_namespace_that_can_not_be_read_proves_no_host_name(tmp_path):
    proc_entry(tmp_path, 4711, 2)
    inside = ProcessInfo("pod", 2, 77)
    assert confirmed(inside, peer(4711), False, HOST, tmp_path).host == "pod"


def proc_entry(proc: Path, pid: int, own_pid: int, container: str = "") -> None:
    entry = proc / str(pid)
    entry.mkdir()
    (entry / "status").write_text(f"Name:\tpython (x)\nPPid:\t1\nNSpid:\t{pid}\t{own_pid}\n")
    (entry / "stat").write_text(f"{pid} (python (x)) " + " ".join(["0"] * 19) + " 77 0\n")
    (entry / "cgroup").write_text(f"0::/system.slice/docker-{container}.scope\n")


def test_a_container_is_known_by_the_pid_inside_it(tmp_path):
    proc_entry(tmp_path, 4711, 2, CONTAINER)
    inside = ProcessInfo("pod", 2, 77, container=CONTAINER)
    assert confirmed(inside, peer(4711), False, HOST, tmp_path).pid == 2
    with pytest.raises(CommandRefused, match="has the pid 2, not 4711"):
        confirmed(dataclasses.replace(inside, pid=4711), peer(4711), False, HOST, tmp_path)


def test_another_container_is_refused(tmp_path):
    proc_entry(tmp_path, 4711, 2, CONTAINER)
    with pytest.raises(CommandRefused, match="container"):
        confirmed(ProcessInfo("pod", 2, 77, container="cd" * 32), peer(4711), False, HOST, tmp_path)


def test_a_container_that_sees_only_its_namespace_is_taken(tmp_path):
    proc_entry(tmp_path, 4711, 2, CONTAINER)
    inside = ProcessInfo("pod", 2, 77, container="pid:[4026532001]")
    assert confirmed(inside, peer(4711), False, HOST, tmp_path) == dataclasses.replace(
        inside, uid=USER
    )


def test_a_name_with_blanks_and_parentheses_is_no_trap(tmp_path):
    proc_entry(tmp_path, 4711, 2)
    seen = seen_by_kernel(4711, tmp_path)
    assert seen is not None
    assert (seen.own_pid, seen.start_time, seen.container) == (2, 77, "")


def test_a_process_runs_until_it_has_ended(child):
    info = claim(child.pid)
    assert still_runs(info, peer(child.pid)) is True
    child.stdin.close()
    child.poll()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now
    assert still_runs(info, peer(child.pid)) is False
    child.wait()
    assert still_runs(info, peer(child.pid)) is False


def test_another_process_with_the_same_pid_is_another_one(child):
    former = dataclasses.replace(claim(child.pid), start_time=1)
    assert still_runs(former, peer(child.pid)) is False


def test_of_a_process_that_is_not_seen_here_nothing_is_known():
    assert still_runs(claim(os.getpid()), peer(0)) is None
    remote = Peer(Role.AGENT, "key node7", "public key")
    assert still_runs(claim(os.getpid()), remote) is None

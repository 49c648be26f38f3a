"""Which training processes are missing from the daemon's list, and the reason given."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from msmon.agent.ranks import evidence as ranks
from msmon.agent.ranks.this_process import current_process
from msmon.diagnosis import processes
from msmon.diagnosis.finding import Level
from msmon.diagnosis.proc import SeenProcess

RANK = {"RANK": "0", "MSMONITOR_USE_DAEMON": "1"}
COMMAND = ["python", "train.py"]


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A site-packages with msmon in it."""
    directory = tmp_path / "site-packages"
    (directory / "msmon").mkdir(parents=True)
    return directory


@pytest.fixture
def listening() -> Iterator[Path]:
    """The runtime directory of a daemon that listens."""
    directory = Path(tempfile.mkdtemp(prefix="msmon-"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "daemon.sock"))
        listener.listen()
        yield directory
    shutil.rmtree(directory)


@pytest.fixture
def train(place, packages: Path, listening: Path):
    """Add a training process that should have registered; returns its pid."""

    def add(pid: int = 500, library: str = "torch_npu", **fields) -> int:
        environ = {**RANK, "MSMON_RUNTIME_DIR": str(listening), **fields.pop("environ", {})}
        library_path = str(packages / library / "lib" / "lib.so")
        place.add_process(
            pid, fields.pop("command", COMMAND), environ=environ, maps=(library_path,), **fields
        )
        return pid

    return add


def reason(find) -> str:
    finding = find(processes.unregistered)
    assert finding.level is Level.WARN
    return finding.details[0]


def test_a_registered_rank_is_not_missed(place, find, train) -> None:
    train(500)
    place.answer({"pid": 500, "container": ""})
    assert find(processes.unregistered).level is Level.OK


def test_who_waits_for_those_that_train_is_said(place, find) -> None:
    place.answer({"pid": 500, "state": "waiting", "waits_for": [501, 502]}, {"pid": 501})
    assert find(processes.registered).details[0].endswith("waiting for 501, 502, which train")


def test_a_rank_in_a_container_is_found_by_its_own_pid_there(place, find, train) -> None:
    train(500, own_pid=7, namespace="pid:[2]")
    train(501, own_pid=7, namespace="pid:[3]")
    place.answer({"pid": 7, "container": "pid:[2]"})
    finding = find(processes.unregistered)
    assert [line.split()[1] for line in finding.details] == ["501"]


def test_a_process_without_a_framework_is_nobody(place, find) -> None:
    place.add_process(500, COMMAND, environ=RANK, maps=("/usr/lib/libc.so.6",))
    place.answer()
    assert find(processes.unregistered).level is Level.OK


@pytest.mark.parametrize(
    "command",
    [
        ["python", "/venv/bin/torchrun", "train.py"],
        ["python", "-m", "torch.distributed.run", "train.py"],
    ],
)
def test_launchers_are_no_ranks(place, find, train, command) -> None:
    train(command=command)
    assert find(processes.unregistered).level is Level.OK


def test_workers_of_a_rank_are_no_ranks(place, find, train) -> None:
    train(500)
    train(501, parent=500)
    train(502, parent=500, command=["python", "-c", "from multiprocessing.spawn import main"])
    place.answer({"pid": 500})
    assert find(processes.unregistered).level is Level.OK


def test_the_variable_is_missing(place, find, train) -> None:
    train(environ={"MSMONITOR_USE_DAEMON": "0"})
    assert "MSMONITOR_USE_DAEMON=1 was not in its environment" in reason(find)


def test_without_a_launcher_it_registers_with_its_first_step(find, train) -> None:
    train(library="mindspore")
    said = reason(find)
    assert "registers with its first step" in said
    assert "mindspore" in said


def test_msmon_is_not_installed_where_it_runs(place, find, train, packages: Path) -> None:
    (packages / "msmon").rmdir()
    train()
    assert f"msmon is not installed in {packages}" in reason(find)


def test_a_preload_that_did_not_work(place, find, train) -> None:
    train(environ={"LD_PRELOAD": "/nowhere/libmspti.so"})
    assert "LD_PRELOAD names /nowhere/libmspti.so, but it is not loaded there" in reason(find)


def test_it_looks_for_the_socket_elsewhere(place, find, train, tmp_path: Path) -> None:
    train(environ={"MSMON_RUNTIME_DIR": str(tmp_path / "other")})
    assert f"looks for the socket {tmp_path / 'other' / 'daemon.sock'}" in reason(find)


def test_its_agent_does_not_trust_the_place(find, train, listening: Path) -> None:
    listening.chmod(0o777)
    train()
    assert f"passes over where it would look: others may write in {listening}" in reason(find)


def test_it_may_just_have_started(place, find, train) -> None:
    train(started_s=time.time() - 1)
    assert "just started" in reason(find)


def test_what_is_left_for_a_rank_is_its_agent(find, train) -> None:
    train(environ={"LOCAL_RANK": "0"})
    assert "see the log below its MSMONITOR_LOG_PATH" in reason(find)


def test_what_inherited_the_mark_of_a_rank_is_its_worker(find, train) -> None:
    environ = dict(RANK)
    ranks.mark(environ)
    environ[ranks.MARK] = "400:" + environ[ranks.MARK].partition(":")[2]
    train(environ=environ)
    assert find(processes.unregistered).level is Level.OK


def test_an_environment_that_is_closed_is_said(place, find, train) -> None:
    (place.proc / str(train()) / "environ").unlink()
    assert "its environment can't be read" in reason(find)


def test_no_daemon_and_no_ranks_are_told_apart(place, find) -> None:
    assert "no daemon answers" in find(processes.registered).text
    place.answer()
    assert "no process is registered" in find(processes.registered).text


def test_proc_of_a_real_process_agrees_with_what_the_agent_says_of_itself() -> None:
    code = (
        "from msmon.agent.ranks.this_process import current_process as c; print(c().pid); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert int(child.stdout.readline()) == child.pid
        seen = SeenProcess(child.pid)
        assert seen.is_python
        assert seen.own_pid == child.pid
        assert seen.parent == os.getpid()
        assert seen.uid == os.getuid()
        assert abs(seen.started_s - time.time()) < 60
        own = current_process()
        assert not own.container or own.container in seen.containers
        child.stdin.close()


def test_equal_pids_in_different_namespaces_are_different_processes() -> None:
    code = (
        "from msmon.agent.ranks.this_process import current_process as c\n"
        "p = c(); print(p.pid, p.container, p.key)"
    )
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code]
    try:
        said = [subprocess.run(command, capture_output=True, text=True) for _ in range(2)]
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if said[0].returncode:
        pytest.skip(f"no pid namespaces here: {said[0].stderr.strip()}")
    first, second = (done.stdout.split() for done in said)
    assert first[0] == second[0] == "1"
    assert first[2] != second[2]


def test_lost_processes_are_no_registered_ones(place, find) -> None:
    lost = [{"rank": rank, "pid": 10 + rank, "state": "lost"} for rank in range(16)]
    place.answer(*lost, {"rank": 0, "pid": 99})
    found = find(processes.registered)
    assert (found.level, found.text) == (Level.WARN, "1 registered, 16 lost")
    assert "node:99" in found.details[0]
    assert "killed or cut off" in found.remedy


def test_nobody_is_registered_where_all_are_gone(place, find) -> None:
    place.answer({"state": "lost"}, {"state": "ended", "pid": 2})
    found = find(processes.registered)
    assert found.level is Level.WARN
    assert found.text == "no process is registered, 1 lost, 1 ended"
    assert "msmon run" in found.remedy


def test_processes_that_said_goodbye_are_no_reason_to_worry(place, find) -> None:
    place.answer({"rank": 0}, {"rank": 1, "pid": 2, "state": "ended"})
    found = find(processes.registered)
    assert (found.level, found.text) == (Level.OK, "1 registered, 1 ended")


def test_what_keeps_a_rank_from_being_monitored_is_told_before_a_start(place, find) -> None:
    problem = "MSMON_SIMULATE: 'rat=1' is no option\n  write 1"
    place.answer({"pid": 500, "problem": problem}, {"pid": 501})
    found = find(processes.registered)
    assert found.level is Level.WARN
    assert "1 of them with a problem" in found.text
    assert found.details[0].endswith("; MSMON_SIMULATE: 'rat=1' is no option; write 1")

"""What a rank has started is a rank itself once it trains."""

from __future__ import annotations

from msmon.bus.messages import Hello, Refused

FORKS = """
msmon.init(rank=0)
stopped()
child = os.fork()
if child == 0:
    for _ in range(int(sys.argv[-1])):
        msmon.step()
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_forked_child_that_trains_registers_and_names_its_parent(daemon, job):
    started = job(FORKS.replace("sys.argv[-1]", "3"))
    parent = daemon.await_hello().process
    started.line()
    child = daemon.await_hello(2).process
    assert child.pid == int(started.output())
    assert child.started_by == f"{parent.pid}:{parent.start_time}"
    assert parent.started_by == ""
    assert daemon.await_status(lambda status: status.step == 3, "the child's own steps")


def test_a_child_that_makes_two_steps_does_not_register(daemon, job):
    started = job(FORKS.replace("sys.argv[-1]", "2"))
    daemon.await_hello()
    started.line()
    assert started.output()
    assert started.end()[0] == 0
    assert len(daemon.of_type(Hello)) == 1


SPAWNS = """
import subprocess
msmon.init()
trains = "import msmon, sys; [msmon.step() for _ in range(3)]; sys.stdin.read()"
subprocess.run([sys.executable, "-c", trains], check=True)
"""


def test_a_spawned_child_that_trains_registers(daemon, job):
    job(SPAWNS, MSMONITOR_USE_DAEMON="1", RANK="4")
    parent = daemon.await_hello().process
    child = daemon.await_hello(2).process
    assert child.pid != parent.pid
    assert child.started_by == f"{parent.pid}:{parent.start_time}"


def test_a_daemon_that_does_not_know_the_parent_is_told_less(daemon, job):
    """An older daemon refuses a hello with a field that it does not know."""
    daemon.refuses = lambda message: (
        isinstance(message, Hello)
        and message.process.started_by
        and Refused("message 'hello': unknown field 'process.started_by'")
    )
    started = job(FORKS.replace("sys.argv[-1]", "3"))
    daemon.await_hello()
    started.line()
    assert daemon.await_hello(2).process.started_by
    child = daemon.await_hello(3).process
    assert (child.pid, child.started_by) == (int(started.output()), "")


def test_a_daemon_that_refuses_for_another_reason_is_told_the_parent_again(daemon, job):
    refused: list[int] = []

    def refuse_once(message: object) -> Refused | None:
        if not isinstance(message, Hello) or not message.process.started_by or refused:
            return None
        refused.append(message.process.pid)
        return Refused("too many processes are registered with this daemon")

    daemon.refuses = refuse_once
    started = job(FORKS.replace("sys.argv[-1]", "3"))
    daemon.await_hello()
    started.line()
    assert daemon.await_hello(3).process.started_by
    assert refused == [int(started.output())]


FORKS_AT_THE_TOP = """
from msmon.agent import autostart
autostart.start()  # as msmon-autostart.pth does before the script
child = os.fork()
if child == 0:
    stopped()
    for _ in range(3):
        msmon.step()
    sys.stdin.read()
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_script_that_forks_at_its_top_and_trains_in_the_child(daemon, job):
    started = job(FORKS_AT_THE_TOP, MSMONITOR_USE_DAEMON="1", RANK="0", LOCAL_RANK="0")
    parent = daemon.await_hello().process
    assert parent.pid == started.process.pid
    started.line()
    child = daemon.await_hello(2).process
    assert (child.rank, child.started_by) == (0, f"{parent.pid}:{parent.start_time}")

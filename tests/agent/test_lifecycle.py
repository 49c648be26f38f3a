"""The agent must not be noticed: start rules, forks, exit codes, signals."""

from __future__ import annotations

import signal

import pytest

from msmon.agent.link.notices import Notices
from msmon.bus.messages import Goodbye, Hello, Status

ENDINGS = {
    "falls off the end": ("", 0),
    "sys.exit": ("sys.exit(7)", 7),
    "exception": ("raise ValueError('the job failed')", 1),
    "os._exit": ("os._exit(9)", 9),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)", -signal.SIGTERM),
    "SIGINT": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(30)", -signal.SIGINT),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_monitored_job_ends_as_it_would_without(daemon, job, ending):
    statement, code = ENDINGS[ending]
    started = job(f"msmon.init(rank=0)\nrecord_for_ever(KERNEL, 1000)\nstopped()\n{statement}\n")
    daemon.await_hello()
    assert daemon.command("monitor.start", kinds="Kernel").ok
    exit_code, out, errors = started.end()
    assert exit_code == code
    assert out == ""
    assert "msmon" not in errors
    assert errors == "" or ending in ("exception", "SIGINT")


@pytest.mark.parametrize("with_daemon", [True, False])
def test_an_idle_job_ends_as_it_would_without(daemon, job, with_daemon):
    started = job("msmon.init()\nstopped()\nsys.exit(7)\n")
    daemon.await_hello()
    if not with_daemon:
        daemon.stop()
    assert started.end() == (7, "", "")


def test_exit_while_mspti_blocks(daemon, job):
    started = job("msmon.init()\nstopped()\nsys.exit(4)\n", MSPTI_DOUBLE_ENABLE_DELAY_MS="-1")
    daemon.await_hello()
    daemon.command_later("monitor.start", kinds="Kernel")
    daemon.await_status(lambda status: status.state == "starting", "starting")
    assert started.end()[:2] == (4, "")


FORK = """
msmon.init(rank=0)
stopped()
child = os.fork()
if child == 0:
    msmon.step()
    record(KERNEL, 5)
    msmon.shutdown()
    sys.exit(3)
_, status = os.waitpid(child, 0)
record(KERNEL, 11)
print(os.WEXITSTATUS(status), flush=True)
sys.stdin.read()
"""


def test_a_forked_child_says_nothing_and_the_parent_goes_on(daemon, job):
    started = job(FORK)
    daemon.await_hello()
    assert daemon.command("monitor.start", kinds="Kernel").ok
    started.line()
    assert started.output() == "3"
    daemon.command("monitor.stop")
    assert daemon.await_closed().end.counts.received == {"Kernel": 11}
    assert len(daemon.of_type(Hello)) == 1
    assert daemon.of_type(Goodbye) == []


FORKS_UNDER_LOAD = """
msmon.init(rank=0)
record_for_ever(KERNEL, 100000)
stopped()
for _ in range(15):
    child = os.fork()
    if child == 0:
        sys.exit(0)
    os.waitpid(child, 0)
print("all ended", flush=True)
sys.stdin.read()
"""


def test_children_forked_at_any_moment_end(daemon, job):
    started = job(FORKS_UNDER_LOAD)
    daemon.await_hello()
    assert daemon.command("monitor.start", kinds="Kernel", ship_records=True).ok
    started.line()
    assert started.output() == "all ended"
    assert daemon.command("monitor.stop").ok
    assert len(daemon.of_type(Hello)) == 1


INIT_IN_CHILD = """
msmon.init(rank=0)
stopped()
child = os.fork()
if child == 0:
    msmon.init(rank=1)
    sys.stdin.read()
    sys.exit(0)
os.waitpid(child, 0)
"""


def test_an_explicit_init_in_a_child_registers_it(daemon, job):
    started = job(INIT_IN_CHILD)
    parent = daemon.await_hello().process
    started.line()
    child = daemon.await_hello(2).process
    assert (parent.rank, child.rank) == (0, 1)
    assert parent.key != child.key


def test_mspti_is_refused_in_the_child_of_a_process_that_loaded_it(daemon, job):
    started = job(INIT_IN_CHILD)
    daemon.await_hello()
    assert daemon.command("monitor.start", kinds="Kernel").ok
    started.line()
    daemon.await_hello(2)
    answer = daemon.command("monitor.start", kinds="Kernel")  # goes to who spoke last
    assert not answer.ok


FIRST_STEP = "stopped()\nmsmon.step()\nprint('stepped', flush=True)\nsys.stdin.read()\n"


def test_the_first_step_starts_the_agent_in_a_rank_that_asks_for_it(daemon, job):
    started = job(FIRST_STEP, MSMONITOR_USE_DAEMON="1", RANK="5", LOCAL_RANK="1", WORLD_SIZE="8")
    started.line()
    process = daemon.await_hello().process
    assert (process.rank, process.local_rank, process.world_size) == (5, 1, 8)
    assert process.uid >= 0


@pytest.mark.parametrize(
    "environ",
    [
        {"RANK": "0"},
        {"MSMONITOR_USE_DAEMON": "0", "RANK": "0"},
        {"MSMONITOR_USE_DAEMON": "false", "KINETO_USE_DAEMON": "1", "RANK": "0"},
        {"MSMONITOR_USE_DAEMON": "", "RANK": "0"},
    ],
)
def test_a_step_starts_nothing_elsewhere(job, environ):
    program = FIRST_STEP.replace("'stepped'", "msmon.agent.lifecycle.current_agent()")
    started = job(program, **environ)
    started.line()
    assert started.output() == "None"


def test_a_job_of_one_process_becomes_a_rank_at_its_first_step(daemon, job):
    started = job(FIRST_STEP, MSMONITOR_USE_DAEMON="1")
    started.line()
    assert daemon.await_hello().process.rank == -1


CHILDREN_STEP = """
import subprocess
msmon.step()
stopped()
child = os.fork()
if child == 0:
    msmon.step()
    os._exit(0)
os.waitpid(child, 0)
subprocess.run([sys.executable, "-c", "import msmon; msmon.step()"], check=True)
print("done", flush=True)
"""


def test_a_step_in_what_a_rank_has_started_registers_nothing(daemon, job):
    started = job(CHILDREN_STEP, MSMONITOR_USE_DAEMON="1", RANK="0", LOCAL_RANK="0")
    daemon.await_hello()
    started.line()
    assert started.output() == "done"
    assert started.end()[0] == 0
    assert len(daemon.of_type(Hello)) == 1


def test_the_switch_of_the_framework_works_too(daemon, job):
    started = job(FIRST_STEP, KINETO_USE_DAEMON="1", RANK_ID="2")
    started.line()
    assert daemon.await_hello().process.rank == 2


def test_init_twice_is_once_and_shutdown_allows_another(daemon, job):
    started = job(
        "msmon.init()\nmsmon.init()\nstopped()\nmsmon.shutdown()\nmsmon.init()\nsys.stdin.read()\n"
    )
    daemon.await_hello()
    started.line()
    daemon.await_hello(2)
    assert len(daemon.of_type(Goodbye)) == 1


def test_a_missing_library_is_shown_and_does_not_disturb(daemon, job):
    program = "msmon.init()\nsys.stdin.read()\nsys.exit(5)\n"
    started = job(program, with_library=False, MSMON_LIBMSPTI="/no/libmspti.so")
    status = daemon.await_status(lambda status: bool(status.problem), "the problem")
    assert "/no/libmspti.so" in status.problem
    answer = daemon.command("monitor.start")
    assert not answer.ok
    assert "/no/libmspti.so" in answer.text
    assert started.end()[0] == 5


def test_init_refuses_arguments_of_the_wrong_type_or_range(job):
    started = job("""
import numpy
wrong = [("rank", "zero"), ("rank", True), ("rank", -2), ("device", 2**31), ("world_size", 1.5),
         ("job_id", 5), ("job_id", "x" * 257)]
for name, value in wrong:
    try:
        msmon.init(**{name: value})
    except msmon.errors.UsageError as error:
        print("refused", name in str(error))
msmon.init(rank=numpy.int64(3), job_id="\\ud800")
""")
    exit_code, out, errors = started.end()
    assert (exit_code, errors) == (0, "")
    assert out.splitlines() == ["refused True"] * 7


RANDOM = """
import random
import numpy
random.seed(1)
numpy.random.seed(1)
before = random.getstate(), numpy.random.get_state()[1].tolist()
msmon.init()
stopped()
after = random.getstate(), numpy.random.get_state()[1].tolist()
print(before == after, flush=True)
"""


def test_the_jobs_random_numbers_stay_what_they_are(daemon, job):
    daemon.stop()
    started = job(RANDOM)
    daemon.start()
    daemon.await_hello()
    started.line()
    assert started.output() == "True"


SIGWAIT = """
signals = {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
msmon.init(rank=0)
stopped()
record(KERNEL, 5)
for number in sorted(signals) * 5:
    os.kill(os.getpid(), number)
    assert signal.sigwait(signals) == number
masks = []
for thread in os.listdir("/proc/self/task"):
    with open(f"/proc/self/task/{thread}/status") as status:
        masks += [int(line.split()[1], 16) for line in status if line.startswith("SigBlk")]
print(len(masks), all(mask >> (number - 1) & 1 for mask in masks for number in signals), flush=True)
"""


def test_a_signal_that_the_job_blocks_and_waits_for_reaches_the_job(daemon, job):
    started = job(SIGWAIT)
    daemon.await_hello()
    assert daemon.command("monitor.start", kinds="Kernel").ok
    code, out, errors = started.end()
    assert (code, errors) == (0, "")
    threads, all_block = out.split()
    assert int(threads) >= 5  # the main one, ours and ZeroMQ's
    assert all_block == "True"


CLOSED = """
for number in {closed}:
    os.close(number)
msmon.init(rank=0)
while not os.path.exists(os.environ["GO_ON"]):
    time.sleep(0.02)
double.double_flushes()
ctypes.CDLL(None).write(1, b"printed", 7)
ctypes.CDLL(None).write(2, b"printed", 7)
with open(os.environ["RESULT"], "w") as result:
    result.write(" ".join(os.readlink(f"/proc/self/fd/{{number}}") for number in {closed}))
"""


@pytest.mark.parametrize("closed", [(0, 1, 2), (1, 2), (2,)])
def test_nothing_of_ours_takes_a_standard_descriptor_that_is_closed(daemon, job, tmp_path, closed):
    go_on, result = tmp_path / "go on", tmp_path / "result"
    started = job(CLOSED.format(closed=closed), GO_ON=str(go_on), RESULT=str(result))
    daemon.await_hello()
    assert daemon.command("monitor.start", kinds="Kernel").ok
    go_on.touch()
    assert started.process.wait(10) == 0
    assert result.read_text().split() == ["/dev/null"] * len(closed)


def test_no_step_of_the_job_breaks_the_heartbeat(daemon, job):
    program = """
msmon.init(rank=0)
for number in (2**64, 2**63, -1, True):
    try:
        msmon.set_step(number)
    except Exception as error:
        print(type(error).__name__, flush=True)
msmon.set_step(2**53)
msmon.step()
stopped()
"""
    started = job(program)
    daemon.await_hello()
    daemon.await_status(lambda status: status.step == 2**53 + 1, "the step")
    assert started.end()[:2] == (0, "UsageError\n" * 4)
    assert len(daemon.of_type(Hello)) == 1


def test_a_note_after_the_end_goes_into_no_file_of_the_job(tmp_path):
    notices = Notices()
    notices.close()
    with open(tmp_path / "checkpoint", "wb") as first, open(tmp_path / "second", "wb"):
        notices.wake()
        notices.status_changed()
        notices.clear_signal()
        first.write(b"")
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == [b"", b""]


def test_a_wrong_setting_is_told_at_once_and_nothing_is_printed(daemon, job, wait_for):
    started = job(
        "msmon.init()\nsys.stdin.read()", with_library=False, MSMON_SIMULATE="rate=2000,rat=1"
    )
    daemon.await_hello()
    wait_for(
        lambda: any(
            isinstance(envelope.message, Status) and "'rat=1'" in envelope.message.problem
            for envelope in daemon.received
        ),
        "a heartbeat names the wrong option",
    )
    assert started.end() == (0, "", "")

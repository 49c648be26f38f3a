"""Jobs whose threads, locks, sockets and clocks are gevent's or eventlet's."""

from __future__ import annotations

import importlib.util

import pytest

from msmon.bus.messages import Goodbye

PATCHES = {
    "gevent": "import gevent.monkey; gevent.monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}
GREEN_SLEEP = {"gevent": "from gevent import sleep", "eventlet": "from eventlet import sleep"}

JOB = """
{before}
import msmon
msmon.init(rank=0)
{after}
{sleep}
print('patched', flush=True)
import threading
turns, ended = 0, False
def count():
    global turns
    while not ended:
        turns += 1
        sleep(0.001)
other = threading.Thread(target=count)  # a greenlet
other.start()
def let_the_other_greenlet_turn(times):
    first = turns
    while turns - first < times:
        sleep(0.001)
while os.path.exists(os.environ["MSMON_TEST_GO"]) is False:
    record(KERNEL, 1)
    sleep(0.005)
let_the_other_greenlet_turn(100)
print('it turns', flush=True)
ended = True
other.join()
"""


@pytest.fixture(params=sorted(PATCHES))
def green(request):
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return request.param


@pytest.mark.parametrize(
    ("when", "with_daemon"), [("before", True), ("after", True), ("before", False)]
)
def test_a_green_job_is_monitored_and_goes_on(daemon, job, green, when, with_daemon, tmp_path):
    patches = {"before": "", "after": "", when: PATCHES[green]}
    if not with_daemon:
        daemon.stop()
    go = tmp_path / "go"
    # the two libraries themselves warn of what they use and of being late
    started = job(
        JOB.format(**patches, sleep=GREEN_SLEEP[green]),
        MSMON_TEST_GO=str(go),
        PYTHONWARNINGS="ignore",
    )
    if with_daemon:
        daemon.await_hello()
    assert started.output() == "patched"
    if with_daemon:
        assert daemon.command("monitor.start", kinds="Kernel").ok
        daemon.await_status(lambda status: status.counts.received.get("Kernel", 0) > 10, "kernels")
        assert daemon.command("monitor.stop").ok
    go.touch()
    assert started.output() == "it turns"
    code, _, errors = started.end()
    assert (code, errors) == (0, "")
    if with_daemon:
        assert daemon.of_type(Goodbye)


MONITOR = """
{patch}
import time
from msmon import ActivityKind, Monitor
with Monitor([ActivityKind.Kernel]) as monitor:
    record(KERNEL, 7)
    time.sleep(0.1)
    record(KERNEL, 4)
print(len(monitor.get_result()[ActivityKind.Kernel]), flush=True)
"""


def test_the_monitor_api_works_in_a_green_job(job, green):
    started = job(MONITOR.format(patch=PATCHES[green]), PYTHONWARNINGS="ignore")
    assert started.end() == (0, "11\n", "")

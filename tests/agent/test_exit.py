"""The end of a job must not crash in MSPTI, however slow its driver is.

The C library double aborts a process that ends while a thread is inside ``msptiDisable`` or
``msptiUnsubscribe``, as MSPTI's static destructors do.
"""

from __future__ import annotations

import pytest

from msmon.bus.messages import GapReport

MONITORED = """
msmon.init(rank=0)
record(KERNEL, 7)
record_for_ever(KERNEL, 1000)
stopped()
"""

SLOW = {
    "unsubscribe": {"MSPTI_DOUBLE_UNSUBSCRIBE_DELAY_MS": "2500"},
    "disable": {"MSPTI_DOUBLE_DISABLE_DELAY_MS": "500"},
}


@pytest.mark.parametrize("slow", SLOW)
def test_a_monitored_job_ends_well_with_a_slow_driver(daemon, job, slow):
    started = job(MONITORED, **SLOW[slow])
    daemon.await_hello()
    assert daemon.command("monitor.start", kinds="Kernel,Marker,API").ok
    assert started.end() == (0, "", "")
    end = daemon.await_closed().end
    assert end.reason == "exit"
    assert end.counts.received["Kernel"] > 0


def test_a_job_that_ends_while_a_stop_is_under_way_ends_well(daemon, job):
    started = job(MONITORED, **SLOW["unsubscribe"])
    daemon.await_hello()
    assert daemon.command("monitor.start", kinds="Kernel").ok
    daemon.command_later("monitor.stop")
    daemon.await_status(lambda status: status.state == "stopping", "stopping")
    assert started.end() == (0, "", "")


def test_a_job_that_shuts_the_agent_down_before_it_ends_ends_well(daemon, job):
    started = job(f"{MONITORED}msmon.shutdown()\n", **SLOW["unsubscribe"])
    daemon.await_hello()
    assert daemon.command("monitor.start", kinds="Kernel").ok
    assert started.end() == (0, "", "")


GIVES_BACK = """
msmon.init(rank=0)
stopped()
msmon.shutdown()
print(double.double_subscribed() & 1, flush=True)
"""


def test_a_job_that_shuts_the_agent_down_may_use_mspti_itself(daemon, job):
    started = job(GIVES_BACK)
    daemon.await_hello()
    assert daemon.command("monitor.start", kinds="Kernel").ok
    assert started.end() == (0, "0\n", "")


FULL_OF_RECORDS = """
msmon.init(rank=0)
stopped()
record(KERNEL, 600_000)
"""


def test_what_a_job_can_not_send_at_its_end_is_counted(daemon, job):
    """34 MB of records, of which 16 MiB may be under way while the daemon acknowledges none."""
    started = job(FULL_OF_RECORDS)
    daemon.await_hello()
    daemon.acknowledging = False
    assert daemon.command("monitor.start", kinds="Kernel", ship_records=True).ok
    assert started.end() == (0, "", "")
    closed = daemon.await_closed()
    counts = closed.end.counts
    assert counts.kept == {"Kernel": 600_000}
    arrived = daemon.records_of(closed.session_id)
    assert 200_000 < arrived == 600_000 - counts.drops["uplink"]
    numbers = [item.message.seq for item in daemon.received if hasattr(item.message, "seq")]
    assert numbers == list(range(1, len(numbers) + 1))
    (gap,) = (item.gap for item in daemon.of_type(GapReport))
    assert gap.records == {"Kernel": counts.drops["uplink"]}

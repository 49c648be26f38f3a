"""Standing orders with real ranks: over restarts of ranks and of the daemon, and beside traces."""

from __future__ import annotations

import signal

from fixtures.one_rank_job import Job
from job import Rank, wait_for

from msmon.bus.client import Client
from msmon.bus.messages import MonitorRequest, Selection
from msmon.bus.recent_windows import RecentReader


def give(job: Job, name: str = "", **fields):
    request = MonitorRequest("start", fields, Selection(), 20.0, always=True, name=name)
    return job.request(request, 30.0)


def followed(job: Job, rank: Rank, order: str = "always"):
    """Wait until a session of the order runs in a rank, and return its row."""

    def row():
        found = job.rows().get(rank.pid)
        running = found is not None and found.state == "monitoring"
        return found if running and found.settings.order == order else None

    return wait_for(row, f"rank {rank.rank} follows {order}")


def test_an_order_holds_over_restarts_of_ranks_and_of_the_daemon(job: Job) -> None:
    job.start_daemon()
    job.start_ranks()
    reply = give(job, kinds="Kernel", report_interval_s=0.5)
    assert reply.outcome == "ok", reply
    first = job.ranks[0]
    before = followed(job, first)
    later = job.start_rank(1)
    assert followed(job, later).order == "always"

    job.end_daemon(signal.SIGKILL)
    job.start_daemon()
    after = followed(job, first)
    assert after.session_id == before.session_id, "the session went on"
    followed(job, later)

    first.kill()
    again = job.start_rank(0)
    assert followed(job, again).settings.kinds == "Kernel"

    job.end_daemon()
    job.start_daemon()
    newest = job.start_rank(2)
    followed(job, newest)

    stopped = job.command("stop")
    assert stopped.outcome == "ok"
    assert "'always' has ended" in stopped.text
    job.await_states("idle")
    last = job.start_rank(3)
    job.await_states("idle", last)
    assert job.daemon_row().orders == []


def test_what_an_order_collects_is_kept_for_viewers(job: Job) -> None:
    job.start_daemon()
    job.start_ranks()
    give(job, kinds="Kernel", report_interval_s=0.3)
    followed(job, job.ranks[0])
    reader, windows = RecentReader(), []

    def three() -> bool:
        with Client(job.endpoint()) as client:
            windows.extend(reader.read(client).windows)
        return len(windows) >= 3

    wait_for(three, "windows for viewers")
    assert {item.session.pid for item in windows} == {job.ranks[0].pid}
    assert all(item.window.kept["Kernel"] > 0 for item in windows[1:])


def test_the_command_line_gives_shows_and_ends_an_order(job: Job) -> None:
    job.start_daemon()
    wait_for(lambda: job.msmon("version").stdout.count("\n") > 1, "the daemon answers")
    given = job.msmon("npu-monitor", "start", "--always", "--kind", "Kernel", "--name", "night")
    assert given.returncode == 0, given
    assert "the order 'night' stands for every process: 0 now" in given.stdout
    assert "order night: every process" in job.msmon("status").stdout
    rank = job.start_rank(0)
    followed(job, rank, "night")
    shown = job.msmon("status").stdout
    assert "1 process follows" in shown
    assert "(order night)" in shown
    ended = job.msmon("npu-monitor", "stop", "--name", "night")
    assert ended.returncode == 0, ended
    assert "the order 'night' has ended" in ended.stdout
    job.await_states("idle")


def test_an_order_of_the_configuration_holds_from_the_start(job: Job) -> None:
    config = job.directory / "daemon.toml"
    config.write_text('[always]\nkind = "Kernel"\nreport-interval-s = 0.5\nrank = "0-3"\n')
    job.daemon_options += ("--config", str(config))
    job.start_daemon()
    rank = job.start_rank(0)
    followed(job, rank, "daemon.toml")
    stopped = job.command("stop")
    assert "until the daemon reads" in stopped.text
    assert str(config) in stopped.text
    job.await_states("idle")
    config.write_text('[always]\nkind = "API"\n')
    job.daemon.send_signal(signal.SIGHUP)
    assert followed(job, rank, "daemon.toml").settings.kinds == "API"


def test_a_trace_makes_an_order_wait_and_pauses_its_session(job: Job) -> None:
    job.start_daemon()
    job.start_ranks()
    give(job, kinds="Kernel")
    session = followed(job, job.ranks[0]).session_id
    traced = job.msmon(
        *("nputrace", "--iterations", "3", "--pause-monitor", "--wait"),
        *("--log-file", str(job.directory / "trace")),
    )
    row = followed(job, job.ranks[0])
    assert row.session_id == session, (traced.stdout, traced.stderr)

"""Standing orders through a real daemon, with agents that follow a script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.running_daemon import ScriptedAgent

from msmon.bus.messages import Answer, Command, MonitorRequest, Selection, Status, StatusRequest
from msmon.bus.rows import TraceRow
from msmon.errors import CommandRefused
from msmon.sessions import MonitorSettings


class Rank(ScriptedAgent):
    """A scripted agent whose status tells what it was told to do, as that of a real one."""

    def __init__(self, endpoint, info) -> None:
        self.starts = 0
        self.refusal: Answer | None = None
        answers = {"monitor.start": self._start, "monitor.stop": self._stop}
        super().__init__(endpoint, info, answers)

    def _start(self, command: Command) -> Answer:
        self.starts += 1
        if self.refusal is not None:
            return self.refusal
        settings = MonitorSettings.from_fields(command.fields)
        session_id = f"{self.info.pid:032x}"
        self.status = Status("monitoring", session_id=session_id, settings=settings)
        self.open_session(session_id)
        return Answer(True, "started", session_id=session_id)

    def _stop(self, command: Command) -> Answer:
        self.status = Status("idle")
        return Answer(True, "stopped")


@pytest.fixture
def rank(agent):
    def make(pid: int, **fields) -> Rank:
        return agent(pid, Rank, **fields)

    return make


@pytest.fixture
def give(daemon):
    def give(name: str = "", wait_s: float = 5.0, fields: dict | None = None, **selection):
        request = MonitorRequest(
            "start", fields or {}, Selection(**selection), wait_s, always=True, name=name
        )
        return daemon.ask(request)

    return give


@pytest.fixture
def order_of(daemon):
    """Return the name of the order that a process's session comes from."""

    def order(pid: int) -> str | None:
        row = daemon.row(pid)
        return row.settings.order if row is not None and row.settings else None

    return order


def test_an_order_holds_for_processes_to_come(daemon, rank, give, order_of, wait_for):
    daemon.start()
    first = rank(11, rank=0)
    reply = give(fields={"kinds": "Kernel"})
    assert [(row.rank, row.ok) for row in reply.rows] == [(0, True)]
    assert "those that register later" in reply.text
    (command,) = first.got(Command)
    assert command.fields == {
        "kinds": "Kernel",
        "report_interval_s": 10.0,
        "ship_records": False,
        "order": "always",
    }
    rank(12, rank=1)
    wait_for(lambda: order_of(12) == "always", "the second rank follows")
    wait_for(lambda: order_of(11) == "always", "the first one too")
    (order,) = daemon.ask(StatusRequest()).daemon.orders
    assert (order.selection, order.following, order.waiting) == ("every process", 2, 0)
    assert order.options == "--kind Kernel --report-interval-s 10"


def test_an_order_without_a_process_is_shown(daemon, give):
    daemon.start()
    assert give(name="night", job_ids=["4711"]).outcome == "ok"
    (order,) = daemon.ask(StatusRequest()).daemon.orders
    assert (order.name, order.selection, order.following) == ("night", "--job-id 4711", 0)


def test_orders_whose_processes_differ_stand_side_by_side(daemon, rank, give, order_of, wait_for):
    daemon.start()
    give("a", job_ids=["a"])
    give("b", job_ids=["b"])
    with pytest.raises(CommandRefused, match="the order 'a' of uid") as caught:
        give("c", ranks=[0])
    assert "stop --name a" in caught.value.next_step
    rank(11, rank=0, job_id="a")
    rank(12, rank=0, job_id="b")
    rank(13, rank=0, job_id="c")
    wait_for(lambda: (order_of(11), order_of(12)) == ("a", "b"), "each follows its own")
    assert order_of(13) is None


def test_an_order_that_can_not_stand_is_refused(daemon, give):
    daemon.start()
    for fields, selection, named in [
        ({"duration_s": 5}, {}, "--duration"),
        ({}, {"pids": [11]}, "--pid"),
        ({"colour": 1}, {}, "colour"),
        ({"order": "x"}, {}, "unknown option order"),
        ({"report_interval_s": -1}, {}, "--report-interval-s"),
    ]:
        with pytest.raises(CommandRefused, match=named):
            give(fields=fields, **selection)
    with pytest.raises(CommandRefused, match="--name"):
        give(name="a b")
    assert daemon.ask(StatusRequest()).daemon.orders == []


def test_a_session_of_an_order_that_ended_meanwhile_is_stopped(
    daemon, rank, give, order_of, wait_for
):
    daemon.start()
    one = rank(11)
    give()
    wait_for(lambda: order_of(11), "it follows")
    one.silent = True
    wait_for(lambda: daemon.row(11).state == "lost", "it is cut off")
    daemon.command("stop")
    one.silent = False
    wait_for(lambda: daemon.row(11).state == "idle", "its session is stopped when it is back")
    assert one.starts == 1


def test_an_impossible_order_is_shown_at_its_process_once(daemon, rank, give, wait_for):
    daemon.start()
    one = rank(11, rank=0)
    one.refusal = Answer(False, "CANN is not there", "install it")
    reply = give()
    assert [(row.ok, row.text) for row in reply.rows] == [(False, "CANN is not there")]
    wait_for(lambda: one.starts >= 2, "it is tried again")
    row = daemon.row(11)
    assert (row.order, row.order_problem) == ("always", "CANN is not there; install it")
    assert daemon.log.read_text().count("can't follow the order") == 1
    refused = (daemon.directory / "keys" / "audit-refused.jsonl").read_text().splitlines()
    assert len(refused) == 1, "that of the command"
    one.refusal = None
    wait_for(lambda: daemon.row(11).order_problem is None, "it follows when that has ended")


def test_a_new_program_in_a_process_is_tried_at_once(daemon, agent, rank, give, wait_for):
    daemon.start()
    one = rank(11)
    one.refusal = Answer(False, "not yet")
    give()
    one.end()
    newer = rank(11)
    wait_for(lambda: newer.starts, "the newer one is asked")


def test_a_session_of_a_command_is_left_alone_until_it_ends(daemon, rank, give, order_of, wait_for):
    daemon.start()
    one = rank(11, rank=0)
    daemon.command("start", {"kinds": "API"})
    wait_for(lambda: daemon.row(11).state == "monitoring", "it is monitored by hand")
    reply = give(fields={"kinds": "Kernel"})
    assert [(row.ok, "left alone" in row.text) for row in reply.rows] == [(True, True)]
    assert "left alone" in daemon.row(11).order_problem
    assert one.starts == 1
    stopped = daemon.command("stop", ranks=[0])
    assert "'always' takes over there" in stopped.text
    wait_for(lambda: order_of(11) == "always", "the order takes over")


def test_a_stop_of_some_ranks_takes_them_out_of_the_order(daemon, rank, give, order_of, wait_for):
    daemon.start()
    first, _ = rank(11, rank=0), rank(12, rank=1)
    give()
    wait_for(lambda: order_of(11) == order_of(12) == "always", "both follow")
    reply = daemon.command("stop", ranks=[0])
    assert "'always' leaves --rank 0 alone" in reply.text
    daemon.restart()
    again = rank(13, rank=0)
    rank(14, rank=1)
    wait_for(lambda: order_of(14) == "always", "the other rank follows after all restarts")
    assert again.starts == 0
    assert daemon.row(13).order is None
    assert first.starts == 1
    give()
    wait_for(lambda: order_of(13) == "always", "given again, it holds for all")


def test_a_stop_for_all_ends_all_orders_for_ever(daemon, rank, give, order_of, wait_for):
    daemon.start()
    one = rank(11, rank=0)
    give()
    wait_for(lambda: order_of(11), "it follows")
    reply = daemon.command("stop")
    assert reply.outcome == "ok"
    assert "'always' has ended" in reply.text
    daemon.restart()
    wait_for(lambda: daemon.row(11), "it is there again")
    rank(12)
    assert daemon.row(12).order is None
    assert one.starts == 1


def test_an_order_ends_by_its_name_with_its_sessions_only(daemon, rank, give, order_of, wait_for):
    daemon.start()
    rank(11, job_id="a")
    rank(12, job_id="b")
    give("a", job_ids=["a"])
    give("b", job_ids=["b"])
    wait_for(lambda: order_of(11) and order_of(12), "both follow")
    reply = daemon.ask(MonitorRequest("stop", name="a", timeout_s=2.0))
    assert [row.pid for row in reply.rows] == [11]
    wait_for(lambda: daemon.row(11).state == "idle", "its session has ended")
    assert order_of(12) == "b"
    with pytest.raises(CommandRefused, match="there is no order 'a'"):
        daemon.ask(MonitorRequest("stop", name="a"))


def test_an_update_changes_the_order_too(daemon, rank, give, order_of, wait_for):
    daemon.start()
    rank(11, rank=0)
    give(fields={"kinds": "Kernel"})
    wait_for(lambda: order_of(11), "it follows")
    assert "'always' is changed too" in daemon.command("update", {"filter": "Kernel:Mat"}).text
    assert "keeps its options" in daemon.command("update", {"filter": ""}, ranks=[0]).text
    daemon.restart()
    later = rank(12, rank=1)
    wait_for(lambda: order_of(12), "a later one follows")
    (command,) = later.got(Command)
    assert command.fields["filter"] == "Kernel:Mat"


def test_no_monitoring_begins_while_a_trace_holds_the_process(daemon, rank, give, wait_for):
    daemon.start()
    one = rank(11)
    one.status = Status("tracing", trace=TraceRow("running"))
    wait_for(lambda: daemon.row(11).state == "tracing", "it is traced")
    give()
    assert "waits for the trace" in daemon.row(11).order_problem
    one.status = Status("paused", session_id="5" * 32, settings=MonitorSettings("Kernel"))
    wait_for(lambda: daemon.row(11).state == "paused", "it is paused")
    assert one.starts == 0
    one.status = Status("idle", trace=TraceRow("done"))
    wait_for(lambda: one.starts == 1, "then it begins at once")


def test_a_damaged_file_of_orders_is_a_warning(daemon, rank, give, order_of, wait_for):
    daemon.start()
    give("good")
    (path,) = (daemon.directory / "keys" / "owners").glob("*/orders.json")
    content = json.loads(path.read_text())
    content["orders"].append({**content["orders"][0], "name": "bad", "fields": {"kinds": 7}})
    path.write_text(json.dumps(content))
    daemon.restart()
    assert [order.name for order in daemon.ask(StatusRequest()).daemon.orders] == ["good"]
    path.write_text("{" * 20)
    daemon.restart()
    assert daemon.ask(StatusRequest()).daemon.orders == []
    assert daemon.log.read_text().count("can't be read") == 2
    assert oct(os.stat(path).st_mode & 0o777) == "0o600"


def test_a_user_gives_a_bounded_number_of_orders(daemon, give):
    daemon.start()
    for number in range(16):
        give(f"order{number}", job_ids=[str(number)])
    with pytest.raises(CommandRefused, match="16 standing orders already"):
        give("more", job_ids=["x"])


OTHER_USER = Path(__file__).parents[2] / "fixtures" / "other_user.py"
OTHER_UID = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_order_of_another_user_holds_for_the_own_processes_only(
    daemon, rank, give, order_of, wait_for
):
    def as_other_user(expression: str) -> str:
        return subprocess.run(
            [sys.executable, str(OTHER_USER), str(OTHER_UID), expression],
            env=daemon.environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout

    daemon.directory.chmod(0o755)
    daemon.start("--allow-users", "everybody")
    roots = rank(11)
    always = "ask(MonitorRequest('start', {}, Selection(), 5.0, True, 'mine')).text"
    assert "'mine' stands for every process: 0 now" in as_other_user(always)
    assert "Welcome" in as_other_user("hello(os.getpid())")
    (order,) = daemon.ask(StatusRequest()).daemon.orders
    assert (order.owner, order.name) == (f"uid {OTHER_UID}", "mine")
    assert daemon.row(11).order is None
    give("roots")
    wait_for(lambda: order_of(11) == "roots", "that of root holds for what is root's")
    theirs = as_other_user("[o.name for o in ask(StatusRequest()).daemon.orders]")
    assert theirs.strip() == "['mine']"
    refused = as_other_user("ask(MonitorRequest('stop', name='roots'))")
    assert "there is no order 'roots'" in refused
    stopped = as_other_user("ask(MonitorRequest('stop')).text")
    assert "'mine' has ended" in stopped
    assert "'roots' leaves every process alone" in stopped
    assert roots.starts == 1
    daemon.restart()
    wait_for(lambda: order_of(11) == "roots", "only root's order is left")
    (order,) = daemon.ask(StatusRequest()).daemon.orders
    assert order.left_alone == [f"every process of uid {OTHER_UID}"]

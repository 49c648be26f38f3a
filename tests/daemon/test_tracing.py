"""nputrace commands through a real daemon: one common first step, or none at all."""

from __future__ import annotations

import asyncio
import math
import time

import pytest

from msmon.bus.messages import Answer, Command, Reply, Selection, Status, TraceRequest
from msmon.bus.rows import TraceRow
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.roles import Role
from msmon.daemon.access.shares import Shares
from msmon.daemon.commands.commander import Commander
from msmon.daemon.commands.tracing import MAX_STEP, Tracing
from msmon.daemon.process import Process
from msmon.daemon.registry import Registry
from msmon.errors import CommandRefused
from msmon.sessions import ProcessInfo

FIELDS = {"iterations": 2, "log_file": "/traces"}


@pytest.fixture
def ask(daemon):
    def ask_daemon(action: str = "start", fields: dict | None = None, limit: int = 0, **selection):
        wanted = FIELDS | (fields or {}) if action == "start" else {}
        request = TraceRequest(action, wanted, Selection(**selection), limit, timeout_s=5.0)
        return daemon.ask(request)

    return ask_daemon


@pytest.fixture
def ranks(daemon, agent):
    """Two ranks of one job, of which one is a little ahead; both tell their steps."""
    daemon.start()
    pair = [agent(11, rank=0, job_id="j"), agent(12, rank=1, job_id="j")]
    for one, step in zip(pair, (100, 103)):
        one.status = Status("idle", step=step, trace=TraceRow(step_s=0.1))
    return pair


@pytest.fixture
def stepping(ranks, daemon, wait_for):
    wait_for(lambda: [row.step for row in daemon.rows()] == [100, 103], "steps are known")
    return ranks


def started(agent) -> list[int]:
    """Return the first steps that the agent was asked for."""
    commands = [command for command in agent.got(Command) if command.action == "trace.start"]
    return [command.fields["start_step"] for command in commands]


def test_next_step_is_one_step_ahead_of_all_ranks(stepping, ask):
    assert ask(fields={"warmup": 3}).outcome == "ok"
    first, second = map(started, stepping)
    assert first == second
    assert 103 + 10 + 3 <= first[0] <= 103 + 40 + 3


def test_when_a_rank_was_faster_all_are_asked_again_further_ahead(stepping, ask):
    refusals = iter([Answer(False, "step has passed", step=150)])
    stepping[1].answers["trace.start"] = lambda _: next(refusals, Answer(True, "accepted"))
    assert ask().outcome == "ok"
    first, second = map(started, stepping)
    assert first == second
    assert len(first) == 2
    assert first[1] > 150
    actions = [command.action for command in stepping[0].got(Command)]
    assert actions == ["trace.start", "trace.cancel", "trace.start"]


def test_an_explicit_step_that_one_rank_has_passed_starts_nowhere(stepping, ask):
    stepping[0].answers["trace.start"] = Answer(True, "accepted", "", "t", step=99)
    stepping[1].answers["trace.start"] = Answer(False, "step 100 has passed", "", "", step=103)
    reply = ask(fields={"start_step": 100})
    assert reply.outcome == "failed"
    assert [row.step for row in reply.rows] == [99, 103]
    assert "rank 1 has passed this step" in reply.rows[0].text
    assert [c.action for c in stepping[0].got(Command)] == ["trace.start", "trace.cancel"]
    assert [c.action for c in stepping[1].got(Command)] == ["trace.start"]


def test_jobs_have_steps_of_their_own(stepping, agent, ask, daemon, wait_for):
    other = agent(13, rank=0, job_id="k")
    other.status = Status("idle", step=5, trace=TraceRow(step_s=0.1))
    wait_for(lambda: daemon.row(13) and daemon.row(13).step == 5, "the step is known")
    assert ask().outcome == "ok"
    assert started(other)[0] < 60
    assert started(stepping[0])[0] > 100


def test_chosen_ranks_only_and_unknown_ones_are_named(stepping, ask):
    reply = ask(ranks=[1, 9])
    assert reply.outcome == "partial"
    assert [(row.rank, row.ok) for row in reply.rows] == [(1, True), (9, False)]
    assert "no rank 9 is known" in reply.rows[1].text
    assert stepping[0].got(Command) == []


def test_a_process_limit_takes_the_first_ranks_and_names_the_others(stepping, ask):
    reply = ask(limit=1)
    assert [row.rank for row in reply.rows] == [0]
    assert "leaves out 1 that match: rank 1" in reply.text
    assert stepping[1].got(Command) == []


def test_cancel_reaches_every_rank(stepping, ask):
    assert ask("cancel").outcome == "ok"
    assert [one.got(Command)[-1].action for one in stepping] == ["trace.cancel"] * 2


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"iterations": 0}, "either --iterations or --duration-ms"),
        ({"log_file": ""}, "needs --log-file"),
        ({"iteration": 3}, "unknown option iteration"),
        ({"start_step": -2}, "out of range"),
    ],
)
def test_wrong_options_go_nowhere(ranks, ask, fields, text):
    with pytest.raises(CommandRefused, match=text):
        ask(fields=fields)
    assert ranks[0].got(Command) == []


def traced_beside_a_stranger(claimed: Status, answer: Answer) -> tuple[Reply, dict[str, list[int]]]:
    """Trace a rank of "uid 1" at step 10, and a rank of "uid 2" that claims the same job.

    ``claimed`` is what the latter reports, ``answer`` what it answers. Returns the reply, and
    owner → the first steps that the owner's rank was asked for.
    """
    registry = Registry(10.0, 10.0, Shares())
    reports = {1: Status("idle", step=10), 2: claimed}
    for uid, status in reports.items():
        peer = Peer(Role.USER, f"uid {uid}", f"uid {uid}", uid, 7)
        info = ProcessInfo("node", 7, 1, rank=0, uid=uid)
        route = bytes([uid])
        process = registry.register(info, peer, route, "1", time.monotonic())
        registry.keep_status(process, status, 10)
    asked: dict[str, list[int]] = {"uid 1": [], "uid 2": []}

    def send(process: Process, command: Command, command_id: str) -> bool:
        owner = process.peer.owner
        if command.action == "trace.start":
            asked[owner].append(command.fields["start_step"])
        given = answer if owner == "uid 2" else Answer(True, "accepted")
        loop = asyncio.get_running_loop()
        loop.call_soon(commander.answered, process, command_id, given)
        return True

    commander = Commander(send)
    tracing = Tracing(registry, commander, "node")
    request = TraceRequest("start", FIELDS, Selection(), timeout_s=5.0)
    operator = Peer(Role.OPERATOR, "uid 0", "uid 0", 0, 1)
    return asyncio.run(tracing.carry_out(request, operator)), asked


@pytest.mark.parametrize("step", [2**62, 2**64 - 1])
def test_a_stranger_in_the_same_job_does_not_move_the_common_step(step):
    reply, asked = traced_beside_a_stranger(Status("idle", step=step), Answer(True, "accepted"))
    assert [row.text for row in reply.rows if row.uid == 1] == ["accepted"]
    assert 10 < asked["uid 1"][0] < 20
    assert asked["uid 2"][0] <= MAX_STEP + 20


def test_a_stranger_in_the_same_job_prevents_no_trace():
    reply, asked = traced_beside_a_stranger(
        Status("idle", step=5), Answer(False, "step has passed", step=2**64 - 1)
    )
    assert {row.uid: row.ok for row in reply.rows} == {1: True, 2: False}
    assert len(asked["uid 1"]) == 1


def test_a_pace_that_is_no_number_is_unknown():
    strange = Status("idle", step=5, trace=TraceRow(step_s=math.nan))
    reply, asked = traced_beside_a_stranger(strange, Answer(True, "accepted"))
    assert reply.outcome == "ok"
    assert asked["uid 2"] == [7]

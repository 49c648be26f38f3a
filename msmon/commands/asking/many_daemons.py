"""One command to the daemons of several machines, and one answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Union

from msmon.bus.messages import Reply
from msmon.bus.rows import MissingRow, Row
from msmon.bus.words import Outcome
from msmon.commands.asking.answers import HEADLINES, MergedReply, daemons
from msmon.errors import MsmonError

MAX_AT_ONCE = 64

Answer = Union[Reply, MsmonError]


def ask_all(hosts: Sequence[str], ask: Callable[[str], Reply]) -> Reply:
    """Ask all hosts at the same time. Raises the error of the first when none answers."""

    def answer_of(host: str) -> Answer:
        try:
            return ask(host)
        except MsmonError as error:
            return error

    with ThreadPoolExecutor(min(len(hosts), MAX_AT_ONCE)) as pool:
        answers = dict(zip(hosts, pool.map(answer_of, hosts)))
    return merged(answers)


def merged(answers: Mapping[str, Answer]) -> Reply:
    """Return the one reply of several daemons, by host.

    What was asked for by rank or job and is known to one of them is not missing. Raises
    the first error when there is no reply.
    """
    errors = {host: item for host, item in answers.items() if isinstance(item, MsmonError)}
    replies = {host: item for host, item in answers.items() if isinstance(item, Reply)}
    if not replies:
        raise next(iter(errors.values()))
    matched = {host: item for host, item in replies.items() if item.outcome not in HEADLINES}
    rows = _rows(list(replies.values()))
    if matched:
        outcome: Outcome | str = _outcome(matched.values(), rows, bool(errors))
        told = {host: item.text for host, item in matched.items() if item.outcome != Outcome.OK}
        if all(item.text for item in matched.values()):
            told = {host: item.text for host, item in matched.items()}
    else:
        outcome = next(iter(replies.values())).outcome
        told = {host: item.text for host, item in replies.items()}
    told |= {host: error.message for host, error in errors.items()}
    steps = [error.next_step for error in errors.values() if error.next_step]
    steps += [item.next_step for item in replies.values() if item.next_step]
    failed = outcome != Outcome.OK or bool(errors)
    return MergedReply(
        outcome,
        "; ".join(f"{host}: {text}" for host, text in told.items() if text),
        steps[0] if steps and failed else "",
        rows,
        daemons=[daemon for item in replies.values() for daemon in daemons(item)],
    )


def _rows(replies: Sequence[Reply]) -> list[Row]:
    """Return all rows; one for what is missing only if every daemon misses it."""
    rows = [row for reply in replies for row in reply.rows]
    present = [row for row in rows if not isinstance(row, MissingRow)]
    known = {
        *(("pid", row.pid) for row in present),
        *(("rank", row.rank) for row in present),
        *(("job_id", row.job_id) for row in present),
    }
    missing: dict[tuple[object, ...], MissingRow] = {}
    for row in rows:
        if isinstance(row, MissingRow) and not _asked_for(row) & known:
            missing.setdefault((row.pid, row.rank, row.job_id, row.text), row)
    return [*present, *missing.values()]


def _asked_for(row: MissingRow) -> set[tuple[str, int | str | None]]:
    wanted = {("pid", row.pid), ("rank", row.rank), ("job_id", row.job_id)}
    return {(name, value) for name, value in wanted if value is not None}


def _outcome(matched: Iterable[Reply], rows: Iterable[Row], any_error: bool) -> Outcome:
    said_yes = [getattr(row, "ok", True) for row in rows]
    if all(said_yes) and not any_error and all(item.outcome != Outcome.FAILED for item in matched):
        return Outcome.OK
    return Outcome.PARTIAL if any(said_yes) else Outcome.FAILED

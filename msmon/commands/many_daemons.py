"""One command to the daemons of several machines, and one answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Union

from msmon.bus.messages import Reply
from msmon.commands.answers import HEADLINES
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


def daemons(reply: Reply) -> list[dict[str, Any]]:
    """Return the facts on every daemon that took part in a reply."""
    found: list[dict[str, Any]] = reply.daemon.get("daemons", [reply.daemon])
    return found


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
        outcome = _outcome(matched.values(), rows, bool(errors))
        told = {host: item.text for host, item in matched.items() if item.outcome != "ok"}
        if all(item.text for item in matched.values()):
            told = {host: item.text for host, item in matched.items()}
    else:
        outcome = next(iter(replies.values())).outcome
        told = {host: item.text for host, item in replies.items()}
    told |= {host: error.message for host, error in errors.items()}
    steps = [error.next_step for error in errors.values() if error.next_step]
    steps += [item.next_step for item in replies.values() if item.next_step]
    failed = outcome != "ok" or bool(errors)
    return Reply(
        outcome,
        "; ".join(f"{host}: {text}" for host, text in told.items() if text),
        steps[0] if steps and failed else "",
        rows,
        {"daemons": [fact for item in replies.values() for fact in daemons(item)]},
    )


def _rows(replies: Sequence[Reply]) -> list[dict[str, Any]]:
    """Return all rows; one for what is missing only if every daemon misses it."""
    present = [row for reply in replies for row in reply.rows if "host" in row]
    missing: list[dict[str, Any]] = []
    for reply in replies:
        for row in reply.rows:
            if "host" not in row and row not in missing and not _is_among(row, present):
                missing.append(row)
    return [*present, *missing]


def _is_among(missing: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a row is of what another daemon misses: a pid, a rank or a job."""
    return any(
        name in missing and row.get(name) == missing[name]
        for name in ("pid", "rank", "job_id")
        for row in rows
    )


def _outcome(matched: Iterable[Reply], rows: Sequence[Mapping[str, Any]], any_error: bool) -> str:
    said_yes = [bool(row.get("ok", True)) for row in rows]
    if all(said_yes) and not any_error and all(reply.outcome != "failed" for reply in matched):
        return "ok"
    return "partial" if any(said_yes) else "failed"

"""All outputs of a daemon, as its broker sees them.

A session goes to every output that the daemon was started with, and to the export that
its settings ask for: one output per owner and file format, with the owner's rights. What all
its outputs hold is acknowledged to the agent.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from msmon.accounts import OutputAccount
from msmon.bus.rows import OutputRow
from msmon.daemon.access.owners import Owner, owner_directory
from msmon.daemon.access.shares import Shares
from msmon.daemon.outputs.delivery import Delivery, ExportCheck
from msmon.daemon.outputs.export_roots import ExportRoots
from msmon.daemon.outputs.lag import HOLD_UP_S
from msmon.daemon.outputs.output import IDLE_S, CheckDone, Output
from msmon.daemon.outputs.output_session import OpenAnswer
from msmon.daemon.outputs.rights import Limits, lends_own_rights, warn_of_missing_rights
from msmon.daemon.outputs.stored_progress import ProgressDirectory
from msmon.errors import MsmonError, SinkError
from msmon.sessions import Drops, SessionInfo, merged_drops
from msmon.sinks.catalog import EXPORT_SINKS, sink_class
from msmon.sinks.exports import require_absolute

OnCommit = Callable[[str, int], None]
"""Called from any thread with (session id, sequence number that is safe)."""


@dataclass(frozen=True)
class OutputsConfig:
    """What the outputs of a daemon are made of.

    ``daemon_outputs``: those it was started with. ``state_directory``: None keeps nothing
    over a restart. ``limits``: of each owner's process.
    """

    daemon_outputs: tuple[Output, ...] = ()
    export_roots: tuple[Path, ...] = ()
    state_directory: Path | None = None
    limits: Limits = field(default_factory=Limits)
    idle_s: float = IDLE_S
    """After this time an owner's process without open sessions is ended."""


class Outputs:
    """All outputs, for the broker's loop. No method but ``close`` blocks.

    The broker's loop alone writes the state; the threads of outputs read it, hence the lock.
    ``on_commit(session_id, seq)`` says that everything up to ``seq`` is safe and can be
    acknowledged. It may be called from any thread, also from within ``put``. All that is
    known of a session stays until ``forget``.
    """

    def __init__(self, config: OutputsConfig, on_commit: OnCommit) -> None:
        self.roots = ExportRoots(config.export_roots)
        self._config = config
        self._on_commit = on_commit
        self._shares: Shares | None = None
        self._lock = threading.Lock()
        self._outputs = list(config.daemon_outputs)
        self._exports: dict[tuple[str, Owner], Output] = {}
        """By the sink's name and the owner."""
        self._routes: dict[str, tuple[Output, ...]] = {}
        """Session id → where its messages go."""
        for output in self._outputs:
            output.on_safe = self._grown
            output.warn_of_open_directory()
        for name in EXPORT_SINKS.values():
            with contextlib.suppress(SinkError):  # whoever asks for such an export is told
                sink_class(name)  # imports it now: later that would hold up the broker
        warn_of_missing_rights()

    def count_against(self, shares: Shares) -> None:
        """Count what is queued and written against its owners' shares, from now on."""
        self._shares = shares
        for output in self._all():
            output.count_against(shares)

    @property
    def wants_records(self) -> bool:
        """Whether an output of the daemon itself wants raw records of every session."""
        return any(output.wants_records for output in self._outputs)

    def check_export(
        self, path: str, export_type: str, owner: Owner, anywhere: bool, done: CheckDone
    ) -> None:
        """Find out whether an owner's data can be written to a path.

        Everything that touches the path happens with the owner's rights, in the owner's
        process. ``anywhere``: the caller may name any place that the owner can write. Otherwise,
        and for owners whom the daemon lends its own rights, it must lie below an export root.
        ``done`` gets the directory without links, or the refusal. Raises UsageError for a text
        that is no path.
        """
        require_absolute(path)
        lent = lends_own_rights(owner)
        anywhere = anywhere and not lent
        roots = None if anywhere else self.roots.paths

        def checked(answer: str | MsmonError) -> None:
            if isinstance(answer, str) and not anywhere:
                try:
                    self.roots.require(answer)  # what the process says is not believed
                except MsmonError as error:
                    answer = error
            if isinstance(answer, MsmonError) and not anywhere:
                answer = self.roots.advised(answer, path, owner)
            done(answer)

        export = self._export(EXPORT_SINKS[export_type], owner)
        prepare = partial(self.roots.make_personal, path, owner)
        export.check(ExportCheck(path, roots, lent), checked, prepare)

    def open_session(
        self, session: SessionInfo, owner: Owner, done: Callable[[OpenAnswer], None]
    ) -> None:
        """Open a session in its outputs; again for one that was closed and has come back.

        ``done`` is called once, from any thread, with its files or why its export can't be
        opened. Raises SinkError when the kind of export is not installed.
        """
        outputs = list(self._outputs)
        export: Output | None = None
        if session.settings.log_file:
            export = self._export(EXPORT_SINKS[session.settings.export_type], owner)
            outputs.append(export)
        with self._lock:
            self._routes[session.session_id] = tuple(outputs)
        answers = _Answers(len(outputs), partial(self.files, session.session_id), done)
        if not outputs:
            done(())
        for output in outputs:
            output.open_session(session, owner, answers.export if output is export else answers)

    def put(self, delivery: Delivery) -> None:
        """Hand a delivery to the outputs of its session."""
        with self._lock:
            outputs = self._routes.get(delivery.session_id, ())
        for output in outputs:
            output.put(delivery)
        if not outputs:
            self._on_commit(delivery.session_id, delivery.seq)

    def check(self, now_s: float) -> None:
        """Leave outputs behind that hold up the others of a session; ``now_s`` is monotonic.

        Outputs that could not be started are tried again. Called again and again.
        See :mod:`lag <msmon.daemon.outputs.lag>`.
        """
        for output in self._all():
            output.try_again()
        with self._lock:
            routes = [item for item in self._routes.items() if len(item[1]) > 1]
        for session_id, outputs in routes:
            for output in outputs:
                held_up_s = output.held_up_s(session_id, now_s)
                if held_up_s > HOLD_UP_S and _others_wait(output, outputs, session_id):
                    output.leave_behind(session_id)

    def forget(self, session_id: str) -> None:
        """Release all that is known of a closed session; nothing of it comes again."""
        with self._lock:
            outputs = self._routes.pop(session_id, ())
        for output in outputs:
            output.forget(session_id)

    def drops(self, session_id: str) -> Drops:
        """Records of a session that outputs dropped so far, summed per stage."""
        return merged_drops(*(output.drops(session_id) for output in self._of(session_id)))

    def accounts(self, session_id: str) -> list[OutputAccount]:
        """What each output of records has done with those of a session."""
        outputs = self._of(session_id)
        return [output.account(session_id) for output in outputs if output.wants_records]

    def files(self, session_id: str) -> tuple[str, ...]:
        """Absolute paths of the files written for a session."""
        return tuple(path for output in self._of(session_id) for path in output.files(session_id))

    def problem(self, session_id: str) -> str:
        """Why not all of a session can be written at the moment; "" when it can."""
        problems = (output.problem(session_id) for output in self._of(session_id))
        return next(filter(None, problems), "")

    def status(self) -> list[OutputRow]:
        """Return what ``status`` tells of each output."""
        return [output.status() for output in self._all()]

    def close(self, timeout_s: float) -> None:
        """Write what is queued, within the time-out for all outputs together."""
        deadline_s = time.monotonic() + timeout_s
        outputs = self._all()
        for output in outputs:
            output.begin_close(deadline_s)
        for output in outputs:
            output.join()

    def _all(self) -> list[Output]:
        with self._lock:
            return [*self._outputs, *self._exports.values()]

    def _of(self, session_id: str) -> tuple[Output, ...]:
        with self._lock:
            return self._routes.get(session_id, ())

    def _export(self, name: str, owner: Owner) -> Output:
        """Return the output of one owner and file format. Raises SinkError, UsageError."""
        found = sink_class(name)
        with self._lock:
            if (name, owner) not in self._exports:
                state, directory = self._config.state_directory, None
                if state is not None:
                    directory = owner_directory(state, owner.name)
                progress = ProgressDirectory(directory, name)
                limits = self._config.limits
                idle_s = self._config.idle_s
                output = Output(
                    found,
                    {},
                    owner=owner,
                    limits=limits,
                    progress=progress,
                    idle_s=idle_s,
                    below=self.roots if lends_own_rights(owner) else None,
                )
                output.on_safe = self._grown
                if self._shares is not None:
                    output.count_against(self._shares)
                self._exports[name, owner] = output
            return self._exports[name, owner]

    def _grown(self, session_id: str) -> None:
        """An output holds more of a session than before."""
        safe = [output.safe_seq(session_id) for output in self._of(session_id)]
        if safe:
            self._on_commit(session_id, min(safe))


def _others_wait(late: Output, outputs: tuple[Output, ...], session_id: str) -> bool:
    """Whether another output has written more of a session."""
    safe_seq = late.safe_seq(session_id)
    return any(other.safe_seq(session_id) > safe_seq for other in outputs if other is not late)


class _Answers:
    """Waits until every output of a session has answered its opening.

    The threads of the outputs write its state, under its lock.
    """

    def __init__(
        self,
        awaited: int,
        files: Callable[[], tuple[str, ...]],
        done: Callable[[OpenAnswer], None],
    ) -> None:
        self._awaited = awaited
        self._files = files
        self._done = done
        self._lock = threading.Lock()
        self._refusal: MsmonError | None = None

    def __call__(self, answer: OpenAnswer) -> None:
        """Take the answer of an output of the daemon: its failure is its own affair."""
        with self._lock:
            self._awaited -= 1
            finished = self._awaited == 0
        if finished:
            self._done(self._refusal or self._files())

    def export(self, answer: OpenAnswer) -> None:
        """Take the answer of the export, which whoever started the session hears of."""
        if isinstance(answer, MsmonError):
            self._refusal = answer
        self(answer)

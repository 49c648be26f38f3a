"""npu-monitor: start, change and stop sessions, and tell which files they write."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
import uuid
from collections.abc import Sequence
from typing import Any, Union

from msmon.accounts import sent, written_account
from msmon.bus.messages import MonitorRequest
from msmon.bus.rows import AnswerRow
from msmon.bus.words import MONITORING_ACTIONS, AgentAction, MonitorAction
from msmon.daemon.access.approvals import Approvals
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.owners import Owner
from msmon.daemon.commands.command_base import Commands, Order
from msmon.daemon.commands.commander import Commander
from msmon.daemon.outputs.outputs import Outputs
from msmon.daemon.process import Process
from msmon.daemon.registry import Registry
from msmon.daemon.rows import identity
from msmon.daemon.selection import Chooser, ranks_meant
from msmon.daemon.streams.stream import owner_of, writes_anywhere
from msmon.daemon.streams.streams import Streams
from msmon.errors import MsmonError, SinkError, UsageError
from msmon.sessions import MonitorSettings, merged_drops
from msmon.settings.options import MONITOR_OPTION, check_fields
from msmon.sinks.exports import require_absolute

FILE_CHECK_LIMIT_S = 20.0
"""For all that the check of an export directory takes, where the request allows so much. The
owner's output process may have to be started, or be in the middle of a large write; a check that
hangs is ended sooner."""

START_TAKES_S = 0.25
"""A check must leave so much time to the start itself, else nothing is started."""

UNDO_LIMIT_S = 5.0
_SHIP_RECORDS = "ship_records"
_NEVER_TYPED = frozenset(
    name for name, option in MONITOR_OPTION.items() if not option.flag.startswith("--")
)

_Export = Union[str, MsmonError]
"""The directory that an owner's data goes to, or why it can't."""


class Monitoring(Commands[MonitorRequest]):
    """Carries out npu-monitor requests."""

    def __init__(
        self,
        registry: Registry,
        streams: Streams,
        outputs: Outputs,
        approvals: Approvals,
        commander: Commander,
        host: str,
    ) -> None:
        super().__init__(registry, commander, host)
        self._streams = streams
        self._outputs = outputs
        self._approvals = approvals

    async def checked(self, request: MonitorRequest, peer: Peer) -> dict[str, Any]:
        """Return the fields to send; an export directory in them is not yet checked."""
        if request.action not in list(MonitorAction):
            raise UsageError(f"unknown npu-monitor action {request.action!r}")
        forged = sorted(_NEVER_TYPED & set(request.fields))
        if forged:
            raise UsageError(f"unknown option {', '.join(forged)}")
        fields = check_fields(MONITOR_OPTION, request.fields)
        if request.action == MonitorAction.STOP and fields:
            raise UsageError(f"npu-monitor stop takes no options, got {', '.join(fields)}")
        if request.action == MonitorAction.UPDATE and not fields:
            raise UsageError("npu-monitor update: nothing to change", "name an option to change")
        if request.action != MonitorAction.START:
            return fields
        settings = MonitorSettings.from_fields(fields)
        if settings.log_file:
            require_absolute(settings.log_file)
        fields[_SHIP_RECORDS] = bool(settings.log_file) or self._outputs.wants_records
        return fields

    async def ask(
        self, processes: Sequence[Process], order: Order[MonitorRequest]
    ) -> list[AnswerRow]:
        """Ask all processes at once. Two ways to a rank may exist; it acts once per request id.

        Each owner's export is checked on its own: the processes of other owners don't wait for it.
        Raises the refusal when there is no owner for whom the export works.
        """
        checks = self._begin_checks(processes, order)
        request_id = uuid.uuid4().hex
        asked = (
            self._ask_one(process, order, checks.get(owner_of(process.peer)), request_id)
            for process in processes
        )
        rows = list(await asyncio.gather(*asked))
        refusals = [check.result() for check in checks.values()]
        if refusals and all(isinstance(refusal, MsmonError) for refusal in refusals):
            raise refusals[0]  # type: ignore[misc]
        return rows

    def vanished(self, request: MonitorRequest, peer: Peer) -> list[AnswerRow]:
        """Return rows on the processes that vanished with their sessions; each is told once.

        Where the request names pids or ranks, it gets a row on each that is gone in any case.
        """
        selection = request.selection
        if request.action != MonitorAction.STOP or selection.pids or selection.ranks:
            return []
        chooser, now_s = Chooser(selection), time.monotonic()
        rows = []
        for stream in self._streams.lost():
            process = stream.process
            if stream.loss_told or not chooser.matches(process):
                continue
            if not peer.may_command(process.peer):
                continue
            stream.loss_told = True
            text = (
                f"the process vanished, last heard of {now_s - process.last_seen_s:.0f} s ago; "
                f"{sum(stream.arrived.values())} records of its session had come"
            )
            files = list(self._outputs.files(stream.session.session_id))
            rows.append(AnswerRow(**identity(process, peer), ok=False, text=text, files=files))
        return rows

    def _begin_checks(
        self, processes: Sequence[Process], order: Order[MonitorRequest]
    ) -> dict[Owner, asyncio.Future[_Export]]:
        """Begin to find out, with each owner's rights, where the owner's data goes."""
        if order.request.action != MonitorAction.START or not order.fields.get("log_file"):
            return {}
        settings = MonitorSettings.from_fields(order.fields)
        owners = dict.fromkeys(owner_of(process.peer) for process in processes)
        return {
            owner: asyncio.ensure_future(self._export(settings, owner, order)) for owner in owners
        }

    async def _export(
        self, settings: MonitorSettings, owner: Owner, order: Order[MonitorRequest]
    ) -> _Export:
        """Ask the owner's output process; a file system may never answer it."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[_Export] = loop.create_future()

        def take(answer: _Export) -> None:
            if not answered.done():
                answered.set_result(answer)

        def done(answer: _Export) -> None:
            loop.call_soon_threadsafe(take, answer)

        own = order.peer.uid == os.geteuid()  # may name any place; others one below an export root
        left_s = order.deadline_s - time.monotonic() - START_TAKES_S
        try:
            self._outputs.check_export(settings.log_file, settings.export_type, owner, own, done)
            return await asyncio.wait_for(answered, min(FILE_CHECK_LIMIT_S, max(0.0, left_s)))
        except MsmonError as error:
            return error
        except (asyncio.TimeoutError, TimeoutError):
            return SinkError(
                f"--log-file: the check of {settings.log_file} for {owner.name} did not end in "
                "time; nothing was started",
                "try again; if it stays so, choose a directory on another file system",
            )

    async def _ask_one(
        self,
        process: Process,
        order: Order[MonitorRequest],
        check: asyncio.Future[_Export] | None,
        request_id: str,
    ) -> AnswerRow:
        """Send one command and return the row on what became of it."""
        action = order.request.action
        export = "" if check is None else await check
        if isinstance(export, MsmonError):
            who = identity(process, order.peer)
            return AnswerRow(**who, ok=False, text=export.message, next_step=export.next_step)
        fields = order.fields
        if export:
            fields = {**fields, "log_file": export}
            await self._approve_export(process, export)
            if time.monotonic() >= order.deadline_s:
                text = "nothing was started: no time was left after the check of the export"
                return AnswerRow(**identity(process, order.peer), ok=False, text=text)
        if not order.holds(process):
            text = "nothing was started: the order does not hold for it any more"
            return AnswerRow(**identity(process, order.peer), ok=False, text=text)
        if order.request.always and process.names_orders:
            fields = {**fields, "order": order.request.name}
        meant = ranks_meant(order.request.selection, process)
        answer = await self.commander.ask(
            process,
            MONITORING_ACTIONS[MonitorAction(action)],
            fields,
            order.deadline_s,
            request_id,
            meant,
        )
        row = AnswerRow(
            **identity(process, order.peer),
            ok=answer.ok,
            text=answer.text,
            next_step=answer.next_step,
            session_id=self._streams.id_of(process, answer.session_id),
        )
        if answer.ok and action == MonitorAction.STOP and not row.session_id:
            return await self._with_former(row, process, order.deadline_s)
        if not answer.ok or not row.session_id:
            return row
        if action == MonitorAction.START:
            return await self._with_outputs(row, process, order.deadline_s)
        if action == MonitorAction.STOP:
            return await self._with_files(row, order.deadline_s)
        return row

    async def _approve_export(self, process: Process, log_file: str) -> None:
        """Note that the process may name this directory when it opens its session.

        Processes of the daemon's own user need no approval: they may name any directory.
        """
        if not writes_anywhere(process.peer):
            await asyncio.get_running_loop().run_in_executor(
                None, self._approvals.add, owner_of(process.peer).name, log_file
            )

    async def _with_outputs(self, row: AnswerRow, process: Process, deadline_s: float) -> AnswerRow:
        """Add what the outputs say to a new session. An export that can't be opened ends it."""
        remaining_s = max(0.0, deadline_s - time.monotonic())
        opened = await self._streams.opened(row.session_id or "", remaining_s)
        if opened is None:
            text = "monitoring started; its outputs have not reported yet"
            return dataclasses.replace(row, text=text)
        if isinstance(opened, MsmonError):
            until_s = time.monotonic() + UNDO_LIMIT_S
            await self.commander.ask(process, AgentAction.STOP_MONITORING, {}, until_s)
            text = f"{opened.message}; monitoring was stopped again"
            return dataclasses.replace(row, ok=False, text=text, next_step=opened.next_step)
        return dataclasses.replace(row, files=list(opened))

    async def _with_files(self, row: AnswerRow, deadline_s: float) -> AnswerRow:
        """Add which files an ended session has written, once they are complete.

        The stop has failed where an output can't write what was recorded, say on a full disk.
        """
        remaining_s = max(0.0, deadline_s - time.monotonic())
        session_id = row.session_id or ""
        complete = await self._streams.written(session_id, remaining_s)
        files = list(self._outputs.files(session_id))
        row = dataclasses.replace(row, text=row.text + self._written(session_id), files=files)
        problem = self._outputs.problem(session_id)
        if problem:
            text = f"{row.text}; it can't be written: {problem}"
            next_step = "mend that soon: after a minute what is not written is given up and counted"
            return dataclasses.replace(row, ok=False, text=text, next_step=next_step)
        if not complete:
            return dataclasses.replace(row, text=f"{row.text}; its outputs are still being written")
        return row

    async def _with_former(self, row: AnswerRow, process: Process, deadline_s: float) -> AnswerRow:
        """Repeat why a stop has failed, while the records of that session are not written."""
        session_id = process.session_id
        stream = self._streams.get(session_id)
        if stream is None or not stream.closed or not self._outputs.problem(session_id):
            return row
        text = f"{row.text}, but the last session is not written"
        return await self._with_files(
            dataclasses.replace(row, session_id=session_id, text=text), deadline_s
        )

    def _written(self, session_id: str) -> str:
        """Return what each output of records has made of a session that ended."""
        stream = self._streams.get(session_id)
        counts = stream.final_counts if stream else None
        if counts is None or not stream or not stream.session.settings.ship_records:
            return ""
        accounts = (
            dataclasses.replace(account, drops=merged_drops(account.drops, stream.drops))
            for account in self._outputs.accounts(session_id)
        )
        return "".join(f"; {written_account(account, sent(counts))}" for account in accounts)

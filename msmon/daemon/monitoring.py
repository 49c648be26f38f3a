"""Carrying out npu-monitor commands: check, select, send, collect the answers.

One request goes to many processes at once and gets one reply, with a row for each
process, when all have answered or the request's time is over.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Sequence
from typing import Any, Union

from msmon.bus.messages import Answer, MonitorRequest, Reply, Selection
from msmon.daemon.access.approvals import Approvals
from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.owners import Owner
from msmon.daemon.access.roles import Role
from msmon.daemon.commanding import Commander
from msmon.daemon.outputs.outputs import Outputs
from msmon.daemon.registry import Process, Registry
from msmon.daemon.rows import foreign_row, identity_row, outcome_of
from msmon.daemon.selection import Selected, ranks_meant, select
from msmon.daemon.streams import Streams, owner_of
from msmon.errors import MsmonError, SinkError, UsageError
from msmon.sessions import MonitorSettings
from msmon.settings.options import MONITOR_OPTION, check_fields
from msmon.sinks.exports import require_absolute

ACTIONS = ("start", "update", "stop")
MAX_TIMEOUT_S = 600.0
FILE_CHECK_LIMIT_S = 8.0
"""For all that the check of an export directory takes, the start of a process included."""

_NEVER_TYPED = "ship_records"

_Export = Union[str, MsmonError]
"""The directory that an owner's data goes to, or why it can't."""


class Monitoring:
    """Carries out requests. Every method runs on the broker's loop."""

    def __init__(
        self,
        registry: Registry,
        streams: Streams,
        outputs: Outputs,
        approvals: Approvals,
        commander: Commander,
        host: str,
    ) -> None:
        self._registry = registry
        self._streams = streams
        self._outputs = outputs
        self._approvals = approvals
        self._commander = commander
        self._host = host

    async def carry_out(self, request: MonitorRequest, peer: Peer) -> Reply:
        """Return the reply to a request. Raises UsageError, SinkError, CommandRefused."""
        fields = self._checked(request)
        deadline_s = time.monotonic() + min(max(request.timeout_s, 0.0), MAX_TIMEOUT_S)
        selected = self._selected(request.selection, peer)
        rows = list(selected.missing)
        if selected.processes:
            exports: dict[Owner, _Export] = {}
            if request.action == "start":
                exports = await self._exports(fields, selected.processes, peer)
            request_id = uuid.uuid4().hex
            commands = [
                self._command(process, request, request_id, fields, exports, peer, deadline_s)
                for process in selected.processes
            ]
            rows = [*await asyncio.gather(*commands), *rows]
            return Reply(outcome_of(rows), rows=rows)
        return Reply(selected.outcome, selected.text, selected.next_step, rows)

    def _checked(self, request: MonitorRequest) -> dict[str, Any]:
        """Return the fields to send; an export directory in them is not yet checked."""
        if request.action not in ACTIONS:
            raise UsageError(f"unknown npu-monitor action {request.action!r}")
        if _NEVER_TYPED in request.fields:
            raise UsageError(f"unknown option {_NEVER_TYPED}")
        fields = check_fields(MONITOR_OPTION, request.fields)
        if request.action == "stop" and fields:
            raise UsageError(f"npu-monitor stop takes no options, got {', '.join(fields)}")
        if request.action == "update" and not fields:
            raise UsageError("npu-monitor update: nothing to change", "name an option to change")
        if request.action != "start":
            return fields
        settings = MonitorSettings.from_fields(fields)
        if settings.log_file:
            require_absolute(settings.log_file)
        fields[_NEVER_TYPED] = bool(settings.log_file) or self._outputs.wants_records
        return fields

    async def _exports(
        self, fields: dict[str, Any], processes: Sequence[Process], peer: Peer
    ) -> dict[Owner, _Export]:
        """Find out, with the rights of each owner whose processes are meant, where data goes.

        Raises the refusal when there is no owner for whom it works.
        """
        settings = MonitorSettings.from_fields(fields)
        if not settings.log_file:
            return {}
        allowed = [process.peer for process in processes if peer.may_command(process.peer)]
        owners = list(dict.fromkeys(map(owner_of, allowed)))
        answers = await asyncio.gather(*(self._export(settings, owner, peer) for owner in owners))
        refusals = [answer for answer in answers if isinstance(answer, MsmonError)]
        if refusals and len(refusals) == len(owners):
            raise refusals[0]
        return dict(zip(owners, answers))

    async def _export(self, settings: MonitorSettings, owner: Owner, peer: Peer) -> _Export:
        """Ask the owner's output process; a file system may never answer it."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[_Export] = loop.create_future()

        def take(answer: _Export) -> None:
            if not answered.done():
                answered.set_result(answer)

        def done(answer: _Export) -> None:
            loop.call_soon_threadsafe(take, answer)

        own = peer.uid == os.geteuid()  # may name any place; others one below an export root
        try:
            self._outputs.check_export(settings.log_file, settings.export_type, owner, own, done)
            return await asyncio.wait_for(answered, FILE_CHECK_LIMIT_S)
        except MsmonError as error:
            return error
        except (asyncio.TimeoutError, TimeoutError):
            return SinkError(
                f"--log-file: the file system of {settings.log_file} does not answer",
                "choose a directory elsewhere",
            )

    def _selected(self, selection: Selection, peer: Peer) -> Selected:
        """A local user who names no process means the own ones."""
        known = self._registry.all()
        if peer.role is Role.USER and selection == Selection():
            known = [process for process in known if peer.may_command(process.peer)]
        return select(selection, known, self._host, time.monotonic())

    async def _command(
        self,
        process: Process,
        request: MonitorRequest,
        request_id: str,
        fields: dict[str, Any],
        exports: dict[Owner, _Export],
        peer: Peer,
        deadline_s: float,
    ) -> dict[str, Any]:
        """Send one command and return the row on what became of it."""
        action = request.action
        if not peer.may_command(process.peer):
            return foreign_row(process, peer)
        row = identity_row(process)
        owner = owner_of(process.peer)
        export = exports.get(owner, "")
        if isinstance(export, MsmonError):
            return {**row, "ok": False, "text": export.message, "next_step": export.next_step}
        if export:
            fields = {**fields, "log_file": export}
            if process.peer.role is not Role.OPERATOR:
                await asyncio.get_running_loop().run_in_executor(
                    None, self._approvals.add, owner.name, export
                )
        meant = ranks_meant(request.selection, process)
        answer = await self._commander.ask(
            process, f"monitor.{action}", fields, deadline_s, request_id, meant
        )
        row |= {
            "ok": answer.ok,
            "text": answer.text,
            "next_step": answer.next_step,
            "session_id": answer.session_id,
        }
        if action == "start" and answer.ok and answer.session_id:
            row |= await self._outputs_row(process, answer.session_id, deadline_s)
        elif action == "stop" and answer.ok and answer.session_id:
            row |= await self._written_row(answer, deadline_s)
        return row

    async def _outputs_row(
        self, process: Process, session_id: str, deadline_s: float
    ) -> dict[str, Any]:
        """Return what the outputs say to a new session. An export that can't be opened ends it."""
        remaining_s = max(0.0, deadline_s - time.monotonic())
        opened = await self._streams.opened(session_id, remaining_s)
        if opened is None:
            return {"text": "monitoring started; its outputs have not reported yet"}
        if isinstance(opened, MsmonError):
            await self._commander.ask(process, "monitor.stop", {}, time.monotonic() + 5.0)
            text = f"{opened.message}; monitoring was stopped again"
            return {"ok": False, "text": text, "next_step": opened.next_step}
        return {"files": list(opened)}

    async def _written_row(self, answer: Answer, deadline_s: float) -> dict[str, Any]:
        """Return which files an ended session has written, once they are complete."""
        remaining_s = max(0.0, deadline_s - time.monotonic())
        complete = await self._streams.written(answer.session_id, remaining_s)
        row: dict[str, Any] = {"files": list(self._outputs.files(answer.session_id))}
        if not complete:
            row["text"] = f"{answer.text}; its outputs are still being written"
        return row

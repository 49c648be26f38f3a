"""What sinks that write records into files have in common: where the files of a session go."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from msmon.errors import UsageError
from msmon.sessions import SessionInfo
from msmon.settings.options import Option, text_up_to
from msmon.sinks.base import ResumableSink


class ExportSink(ResumableSink):
    """Base of sinks that write records into a directory.

    Made without options, a sink serves sessions that name a directory themselves; as an output
    of the daemon it takes every session, and needs ``path``.
    """

    WANTS_RECORDS = True
    WANTS_WINDOWS = False
    OWN_PROCESS = True
    OPTIONS = (
        Option(
            "path",
            "path",
            "directory for the files of every session",
            text_up_to(4096),
            default="",
            metavar="DIRECTORY",
        ),
    )

    @classmethod
    def options_in_force(
        cls, options: Mapping[str, Any], environ: Mapping[str, str]
    ) -> dict[str, Any]:
        """Raises UsageError for an empty path."""
        if options.get("path") == "":
            raise UsageError(
                f"output {cls.NAME} needs a directory", f"write {cls.NAME}:path=DIRECTORY"
            )
        return dict(options)

    def placed(self, session: SessionInfo) -> SessionInfo | None:
        """Return the session with the directory that applies; None: nothing is to be written."""
        own = self.options.get("path")
        path = os.path.realpath(own) if own else session.settings.log_file
        if not path:
            return None
        settings = dataclasses.replace(session.settings, log_file=path)
        return dataclasses.replace(session, settings=settings)

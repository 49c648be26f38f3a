"""``Monitor`` as msMonitor has it: it prints errors and returns, where msmon's own raises."""

from __future__ import annotations

import os

from msmon.errors import MsmonError
from msmon.monitor_api.monitor import Monitor
from msmon.monitor_api.results import ActivityRecords
from msmon.records.kinds import ActivityKind


class SingletonMonitor:
    """The object behind the name ``Monitor``.

    Scripts write ``monitor = Monitor()`` and expect the one instance, so calling the object
    returns itself.
    """

    def __init__(self) -> None:
        self._monitor = Monitor()

    def __call__(self) -> SingletonMonitor:
        return self

    def start(self, kinds: list[ActivityKind]) -> None:
        """Begin to collect into memory. Earlier data is discarded."""
        valid = isinstance(kinds, list) and all(isinstance(kind, ActivityKind) for kind in kinds)
        if not valid or not kinds:
            print("[ERROR] Invalid activity kind list")
            return
        if self._monitor.running:
            print("[WARNING] Monitor is already started")
            return
        try:
            self._monitor.start(kinds)
        except MsmonError as error:
            print(f"[ERROR] Failed to start monitor: {error}")
            return
        for name, reason in self._monitor.unavailable.items():
            print(f"[WARNING] {name} is not available: {reason}")

    def stop(self) -> None:
        """Stop collecting, and keep the data."""
        self._monitor.stop()

    def get_result(self) -> dict[ActivityKind, ActivityRecords]:
        """Return the records collected so far, by kind; {} before the first start."""
        try:
            return self._monitor.get_result()
        except MsmonError:
            print("[WARNING] No valid activity kind")
            return {}

    def save(self, file_path: str) -> None:
        """Write an XLSX file with a sheet for each kind. ".xlsx" is appended if it is missing."""
        if not isinstance(file_path, str) or not file_path:
            print("[ERROR] Invalid file path")
            return
        if not self.get_result():
            print("[WARNING] No data to save")
            return
        target = file_path if file_path.endswith(".xlsx") else f"{file_path}.xlsx"
        if os.path.isfile(target):
            print(f"[WARNING] {target} exists and will be overwritten")
        try:
            self._monitor.save(file_path)
        except MsmonError as error:
            print(f"[ERROR] Failed to save file: {error}")


shared = SingletonMonitor()
"""The instance that both packages export."""

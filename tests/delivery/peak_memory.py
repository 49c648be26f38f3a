"""The largest memory that the processes of a job took."""

from __future__ import annotations

import contextlib
import threading

import psutil
from job import Job


class PeakMemory:
    """Watches the memory of daemon, outputs and ranks: USS, which no other process shares."""

    def __init__(self, job: Job) -> None:
        self.daemon_bytes = self.output_bytes = self.rank_bytes = 0
        self._job = job
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            daemon = self._job.daemon
            with contextlib.suppress(psutil.Error):
                if daemon is not None:
                    process = psutil.Process(daemon.pid)
                    self.daemon_bytes = max(self.daemon_bytes, _own_bytes(process))
                    for child in process.children():
                        self.output_bytes = max(self.output_bytes, _own_bytes(child))
            for rank in list(self._job.ranks):
                with contextlib.suppress(psutil.Error):
                    own = _own_bytes(psutil.Process(rank.pid))
                    self.rank_bytes = max(self.rank_bytes, own)


def _own_bytes(process: psutil.Process) -> int:
    return int(process.memory_full_info().uss)

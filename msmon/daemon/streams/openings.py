"""Waiting until the outputs have said which files a session writes."""

from __future__ import annotations

import asyncio

from msmon.daemon.outputs.output_session import OpenAnswer


class Openings:
    """Who waits for the opening of which session. The broker's loop writes its state."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[OpenAnswer]]] = {}

    async def wait(self, session_id: str, timeout_s: float) -> OpenAnswer | None:
        """Return what is told next of a session; None when it takes too long."""
        future: asyncio.Future[OpenAnswer] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(session_id, [])
        waiting.append(future)
        done, _ = await asyncio.wait([future], timeout=timeout_s)
        if done:
            return future.result()
        waiting.remove(future)
        if not waiting:
            self._waiting.pop(session_id, None)
        return None

    def tell(self, session_id: str, answer: OpenAnswer) -> None:
        """Answer all who wait for a session."""
        for future in self._waiting.pop(session_id, ()):
            if not future.done():
                future.set_result(answer)

"""Waiting until something is known of a session: which files it writes, or that all is written."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

Told = TypeVar("Told")


class Awaited(Generic[Told]):
    """Who waits for word on which session. The broker's loop writes its state.

    Nobody looks again and again: a thousand stops that wait for a slow disk cost the loop nothing
    until the disk is done.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[Told]]] = {}

    async def wait(self, session_id: str, timeout_s: float) -> Told | None:
        """Return what is told next of a session; None when it takes too long."""
        future: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(session_id, [])
        waiting.append(future)
        done, _ = await asyncio.wait([future], timeout=timeout_s)
        if done:
            return future.result()
        waiting.remove(future)
        if not waiting:
            self._waiting.pop(session_id, None)
        return None

    def tell(self, session_id: str, word: Told) -> None:
        """Answer all who wait for a session."""
        for future in self._waiting.pop(session_id, ()):
            if not future.done():
                future.set_result(word)

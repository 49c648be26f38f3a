"""MSPTI's subscription as one recorder has it, and the marker domains that it switches off."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msmon.recording.calls import CALL_ERRORS, MsptiCalls

if TYPE_CHECKING:
    from msmon.ffi.arena import BufferArena
    from msmon.ffi.mspti import Mspti

DISABLED_DOMAINS = ("communication",)
"""Marker domains switched off while recording, as msMonitor does: one long marker per
collective, which the Communication kind reports better."""


class Subscription:
    """One subscription after the other. Used and written by the recorder's thread only."""

    def __init__(self, mspti: Mspti, arena: BufferArena, calls: MsptiCalls) -> None:
        self._mspti = mspti
        self._arena = arena
        self._calls = calls
        self._handle: int | None = None
        self._disabled_domains: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        """Whether MSPTI records for us, or the subscription is kept until the process ends."""
        return self._handle is not None

    def take(self) -> None:
        """Subscribe and register the callbacks.

        Raises MsptiError or LibraryUnavailable; nothing stays subscribed then.
        """
        handle = self._calls.make("msptiSubscribe", self._mspti.subscribe)
        try:
            self._calls.make(
                "msptiActivityRegisterCallbacks",
                self._mspti.register_callbacks,
                self._arena.request_address,
                self._arena.complete_address,
            )
        except CALL_ERRORS:
            self._calls.attempt("msptiUnsubscribe", self._mspti.unsubscribe, handle)
            raise
        self._handle = handle

    def end(self) -> None:
        """Unsubscribe; what MSPTI still held is complete then."""
        self._calls.attempt("msptiUnsubscribe", self._mspti.unsubscribe, self._handle)
        self._calls.attempt("msptiActivityFlushAll", self._mspti.flush_all)

    def forget(self) -> None:
        """Have no subscription any more, whether MSPTI was told or not."""
        self._handle = None

    def disable_domains(self, names: Iterable[str]) -> None:
        """Switch marker domains off."""
        self._disabled_domains = tuple(names)
        for name in self._disabled_domains:
            self._calls.attempt(
                f"msptiActivityDisableMarkerDomain({name})", self._mspti.disable_marker_domain, name
            )

    def enable_domains(self) -> None:
        """Switch them on again."""
        for name in self._disabled_domains:
            self._calls.attempt(
                f"msptiActivityEnableMarkerDomain({name})", self._mspti.enable_marker_domain, name
            )

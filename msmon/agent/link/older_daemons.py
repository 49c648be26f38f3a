"""What is kept for the daemon, as an older daemon takes it.

Messages are kept in their newest form, because nobody knows which daemon will take them: one may be
replaced by another while they wait. An older daemon refuses a field that it doesn't know, so they
are changed when they are sent to it.
"""

from __future__ import annotations

import dataclasses

from msmon.bus.codec import decode, encode
from msmon.bus.messages import WindowReport, WindowSoFar
from msmon.records.window_header import WindowHeader

SO_FAR_MINOR = 1
"""From this minor version of the protocol on a daemon takes ``WindowSoFar``."""

DETAILS_MINOR = 2
"""From this one on it knows steps, devices, sizes and collectives of a window."""


def understood_by(daemon_minor: int, frames: list[bytes]) -> list[bytes]:
    """Return the frames of a message as a daemon of this minor version takes them."""
    if daemon_minor >= DETAILS_MINOR:
        return frames
    envelope = decode(frames)
    message = envelope.message
    if not isinstance(message, (WindowReport, WindowSoFar)):
        return frames
    from msmon.records.window_frames import older_frames_of, older_header_of, window_of

    window = window_of(WindowHeader(**message.header_fields()), envelope.payload)
    older = dataclasses.replace(message, **older_header_of(window).header_fields())
    return encode(older, envelope.message_id, older_frames_of(window))

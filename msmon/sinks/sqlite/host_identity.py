"""The host's identity as msMonitor computes it, for ``HOST_INFO.hostUid``."""

from __future__ import annotations

from pathlib import Path

INTERFACES = Path("/sys/class/net")
_MASK = 0xFFFFFFFF
_LOCALLY_ADMINISTERED = 0x02


def text_hash(text: str) -> int:
    """Return msMonitor's 64-bit hash of a text (bytes taken as signed, as on x86_64)."""
    high = low = 0
    for byte in text.encode("utf-8", "surrogateescape"):
        signed = byte - 256 if byte >= 128 else byte
        high = (high * 29 + signed) & _MASK
        low = (low * 131 + signed) & _MASK
    return (high << 32) | low


def host_uid(interfaces: Path = INTERFACES) -> str:
    """Return the decimal hash over the MAC addresses of this host; empty without any.

    Only universally administered addresses count, unless there are none.
    """
    addresses = []
    for path in interfaces.glob("*/address"):
        if path.parent.name == "lo":
            continue
        try:
            digits = path.read_text().strip().replace(":", "")
        except OSError:
            continue
        if digits and int(digits, 16):
            addresses.append(digits)
    universal = [item for item in addresses if not int(item[:2], 16) & _LOCALLY_ADMINISTERED]
    chosen = sorted(universal or addresses)
    return str(text_hash("-".join(chosen))) if chosen else ""

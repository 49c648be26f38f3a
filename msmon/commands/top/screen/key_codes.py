"""The bytes that a terminal sends for a key."""

from __future__ import annotations

ESCAPE = "\x1b"

_SEQUENCES = {
    **{f"\x1b{kind}{code}": name for kind in "[O" for code, name in (
        ("A", "up"), ("B", "down"), ("C", "right"), ("D", "left"), ("H", "home"), ("F", "end"),
        ("M", "enter"),
    )},
    "\x1b[1~": "home", "\x1b[7~": "home", "\x1b[4~": "end", "\x1b[8~": "end",
    "\x1b[5~": "pageup", "\x1b[6~": "pagedown",
}  # fmt: skip

_CHARACTERS = {
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x04": "pagedown",
    "\x06": "pagedown",
    "\x15": "pageup",
    "\x02": "pageup",
    ESCAPE: "escape",
}

LONGEST = 32
"""Characters of a sequence; what is longer is none."""


def keys_in(text: str, is_all: bool = True) -> tuple[list[str], str]:
    """Return the keys that a text stands for, and what is left of it.

    ``is_all`` is False while more may come: then the begin of a sequence is left. A sequence that
    is not known is no key.
    """
    keys = []
    while text:
        if text[0] != ESCAPE or (len(text) == 1 and is_all):
            keys.append(_CHARACTERS.get(text[0], text[0]))
            text = text[1:]
            continue
        length = _length(text)
        if length == 0 and not is_all:
            return keys, text
        length = length or 1
        if length == 1:
            keys.append("escape")
        elif text[:length] in _SEQUENCES:
            keys.append(_SEQUENCES[text[:length]])
        text = text[length:]
    return keys, ""


def _length(text: str) -> int:
    """Return how long the sequence is that a text begins with; 0: its end is not there yet."""
    if len(text) < 2:
        return 0
    if text[1] not in "[O":
        return 1
    if text[1] == "O":
        return 3 if len(text) > 2 else 0
    for place, character in enumerate(text[2:LONGEST], 2):
        if "@" <= character <= "~":
            return place + 1
    return 0 if len(text) < LONGEST else LONGEST

"""Bytes of a terminal as keys."""

from __future__ import annotations

import pytest

from msmon.commands.top.screen.key_codes import keys_in


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("jk/é", ["j", "k", "/", "é"]),
        ("\x1b[A\x1b[B\x1bOC\x1b[D", ["up", "down", "right", "left"]),
        ("\x1b[5~\x1b[6~\x1b[H\x1b[F\x1b[1~\x1b[4~", ["pageup", "pagedown", *["home", "end"] * 2]),
        ("\r\n\x7f\b", ["enter", "enter", "backspace", "backspace"]),
        ("\x1b", ["escape"]),
        ("\x1bq", ["escape", "q"]),
        ("\x1b[1;5Aj", ["j"]),  # a sequence that is no key of ours
        ("\x1b[", ["escape", "["]),
    ],
)
def test_keys(text, keys):
    assert keys_in(text) == (keys, "")


def test_the_begin_of_a_sequence_waits_for_its_end():
    assert keys_in("j\x1b[", is_all=False) == (["j"], "\x1b[")
    assert keys_in("\x1b", is_all=False) == ([], "\x1b")
    assert keys_in("\x1bO", is_all=False) == ([], "\x1bO")


def test_an_endless_sequence_is_given_up():
    keys, rest = keys_in("\x1b[" + "1" * 100, is_all=False)
    assert rest == ""
    assert len(keys) < 100

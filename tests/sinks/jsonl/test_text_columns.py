"""Columns of numbers and texts become lines of text."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from msmon.sinks.jsonl.text_columns import BYTES_AT_ONCE, Texts, json_text, lines


@given(
    st.lists(
        st.tuples(st.integers(0, 2**64 - 1), st.text(st.characters(codec="utf-8"), max_size=40)),
        min_size=1,
        max_size=50,
    )
)
def test_lines_equal_those_of_the_json_module(rows: list[tuple[int, str]]) -> None:
    numbers = np.array([number for number, _ in rows], np.uint64)
    texts = Texts([json_text(text) for _, text in rows], np.arange(len(rows)))
    made = lines([b'{"number":', numbers, b',"text":', texts, b"}\n"], len(rows))
    expected = [
        json.dumps({"number": number, "text": text}, ensure_ascii=False, separators=(",", ":"))
        for number, text in rows
    ]
    assert made.decode() == "".join(f"{item}\n" for item in expected)


def test_one_long_text_does_not_make_all_lines_wide_in_memory() -> None:
    texts = ["short", "x" * 300_000]
    numbers = np.zeros(20_000, np.intp)
    numbers[[7, 5_000, 5_001, 19_999]] = 1
    column = Texts([json_text(text) for text in texts], numbers)
    tracemalloc.start()
    made = lines([column, b"\n"], len(numbers))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert made.decode() == "".join(f'"{texts[number]}"\n' for number in numbers)
    assert peak_bytes < 4 * BYTES_AT_ONCE


def test_a_text_longer_than_a_matrix_may_be_has_one_of_its_own() -> None:
    long = json_text("y" * (BYTES_AT_ONCE + 1))
    made = lines([Texts([b"1", long], np.array([0, 1, 0])), b"\n"], 3)
    assert made == b"1\n" + long + b"\n1\n"

"""Parsing of filter expressions, and what is refused."""

from __future__ import annotations

import pytest

from msmon.errors import UsageError
from msmon.records.filter import MAX_FILTER_LENGTH, Filter
from msmon.records.kinds import ActivityKind
from msmon.records.layout import NAMELESS_KINDS

KERNEL, API, MARKER = ActivityKind.Kernel, ActivityKind.API, ActivityKind.Marker


@pytest.mark.parametrize(
    ("text", "needles"),
    [
        ("", {}),
        ("   ", {}),
        ("Kernel:MatMul", {KERNEL: ("MatMul",)}),
        ("Kernel:MatMul, Softmax ;API:a b", {KERNEL: ("MatMul", "Softmax"), API: ("a b",)}),
        (" Marker : step", {MARKER: ("step",)}),
        ("Marker:std::sort", {MARKER: ("std::sort",)}),
        ("Kernel:a;Kernel:b,a", {KERNEL: ("a", "b")}),
        ("Kernel:算子", {KERNEL: ("算子",)}),
    ],
)
def test_expressions_are_parsed(text: str, needles: dict[ActivityKind, tuple[str, ...]]) -> None:
    parsed = Filter.parse(text)
    assert parsed.needles == needles
    assert parsed.kinds == set(needles)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Kernel", "'Kernel' has no colon"),
        ("Kernel:a;", "'' has no colon"),
        (";Kernel:a", "'' has no colon"),
        ("Kernel:a;;API:b", "'' has no colon"),
        ("Kernel:", "'Kernel:' has an empty name"),
        ("Kernel:a,,b", "'Kernel:a,,b' has an empty name"),
        ("Kernel:a;API: ", "'API: ' has an empty name"),
        ("Kernal:a", "unknown activity kind 'Kernal'"),
        ("kernel:a", "unknown activity kind 'kernel'"),
        (":a", "unknown activity kind ''"),
        ("Memory:a", "Memory records have no name"),
        ("Kernel:" + "a" * MAX_FILTER_LENGTH, f"{MAX_FILTER_LENGTH + 7} characters"),
    ],
)
def test_a_wrong_part_is_refused_and_named(text: str, named: str) -> None:
    with pytest.raises(UsageError) as refused:
        Filter.parse(text)
    assert named in refused.value.message
    assert refused.value.next_step


def test_the_longest_allowed_filter_passes() -> None:
    text = "Kernel:" + "a" * (MAX_FILTER_LENGTH - 7)
    assert Filter.parse(text).needles == {KERNEL: ("a" * (MAX_FILTER_LENGTH - 7),)}


def test_names_match_as_case_sensitive_substrings() -> None:
    parsed = Filter.parse("Kernel:MatMul")
    assert parsed.keeps_name(KERNEL, "aclnnMatMulV2")
    assert not parsed.keeps_name(KERNEL, "matmul")
    assert not parsed.keeps_name(API, "MatMul")


def test_kinds_that_can_pass() -> None:
    parsed = Filter.parse("Kernel:MatMul")
    assert {kind for kind in ActivityKind if parsed.keeps_kind(kind)} == {KERNEL, *NAMELESS_KINDS}
    assert all(Filter.parse("").keeps_kind(kind) for kind in ActivityKind)

"""Kind names as users type them."""

from __future__ import annotations

import pytest

from msmon.errors import UsageError
from msmon.records.kinds import ActivityKind, format_kinds, kind_named, parse_kinds


def test_numbers_are_those_of_the_header() -> None:
    device = ["Marker", "Kernel", "API", "Hccl", "Memory", "MemSet", "MemCpy"]
    later = ["ExternalCorrelation", "Communication", "AclAPI", "NodeAPI", "RuntimeAPI"]
    assert {kind.name: kind.value for kind in ActivityKind} == dict(
        zip(device + later, range(1, 13))
    )


def test_a_list_is_parsed_and_formatted_in_numeric_order() -> None:
    kinds = parse_kinds(" API,Marker , Kernel,API")
    assert kinds == {ActivityKind.Marker, ActivityKind.Kernel, ActivityKind.API}
    assert format_kinds(kinds) == "Marker,Kernel,API"


@pytest.mark.parametrize("text", ["", " ", "Kernel,", ",Kernel", "Kernel,,API"])
def test_an_empty_item_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="empty item"):
        parse_kinds(text)


def test_an_unknown_kind_is_named_and_the_known_ones_are_listed() -> None:
    with pytest.raises(UsageError) as refused:
        kind_named("Kernels")
    assert "'Kernels'" in refused.value.message
    assert all(kind.name in refused.value.next_step for kind in ActivityKind)


def test_a_kind_prints_with_its_class() -> None:
    assert str(ActivityKind.Kernel) == "ActivityKind.Kernel"

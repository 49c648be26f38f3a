"""One check for every option, wherever its value comes from."""

from __future__ import annotations

import pytest

from msmon.errors import UsageError
from msmon.settings.options import MONITOR_OPTION, check_fields

NO_NUMBERS = (
    *("", " ", "nan", "inf", "-inf", "1e400", "1" * 400),
    *("1_000", "\uff11\uff10\uff10", "0x10", "5s", "1,5", "1 0", ".", "-200"),
)


@pytest.mark.parametrize("name", ["report_interval_s", "duration_s", "jsonl_rotate_lines"])
@pytest.mark.parametrize("value", [*NO_NUMBERS, True, None, [], 10**400, -(10**400), float("nan")])
def test_what_is_no_sensible_number_is_refused_with_the_option_named(name, value):
    option = MONITOR_OPTION[name]
    with pytest.raises(UsageError, match=option.flag) as caught:
        option.check(value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "value", "checked"),
    [
        ("report_interval_s", "0.1", 0.1),
        ("report_interval_s", "4294967295", 4294967295.0),
        ("report_interval_s", "1e3", 1000.0),
        ("report_interval_s", ".5", 0.5),
        ("duration_s", 0, 0.0),
        ("jsonl_rotate_lines", 100, 100),
        ("jsonl_rotate_lines", "500000", 500_000),
        ("jsonl_rotate_files", "-1", -1),
        ("jsonl_rotate_files", 2, 2),
    ],
)
def test_limits_are_inclusive(name, value, checked):
    assert MONITOR_OPTION[name].check(value) == checked


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("report_interval_s", "0.0999", "0.1 to 4294967295"),
        ("report_interval_s", "4294967296", "0.1 to 4294967295"),
        ("jsonl_rotate_lines", 99, "100 to 500000"),
        ("jsonl_rotate_lines", 500_001, "100 to 500000"),
        ("jsonl_rotate_files", 0, "2 and more"),
        ("jsonl_rotate_files", 1, "2 and more"),
        ("jsonl_rotate_files", -2, "-1"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_limits(name, value, allowed):
    with pytest.raises(UsageError, match="out of range") as caught:
        MONITOR_OPTION[name].check(value)
    assert allowed in caught.value.next_step


def test_an_unknown_field_is_named():
    with pytest.raises(UsageError, match="colour"):
        check_fields(MONITOR_OPTION, {"duration_s": 1, "colour": "red"})

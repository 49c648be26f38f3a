"""Checks of incoming values, made from the type hints of the message dataclasses.

A checker takes a plain value (as msgpack yields it) and the place where it stood, and returns the
value to use; it raises UsageError that names the place. Checkers are made once per class.

Every text, list and map has a bound beside its hint (:class:`msmon.bounds.Bound`). What has none
can't be made into a checker, so a field without a bound fails when the codec is loaded.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, Optional, Union, get_args, get_origin, get_type_hints

from msmon.bounds import ORDINARY, Bound, Span
from msmon.bus.rows import Facts
from msmon.errors import UsageError
from msmon.sessions import MonitorSettings

Checker = Callable[[Any, str], Any]

TOLD = (Facts, MonitorSettings)
"""Classes that only tell something: a field that a newer side has added is passed over."""

_CUT_MARK = " …"

_made: dict[type[Any], Checker] = {}


def checker_of_fields(cls: type[Any]) -> Checker:
    """Return a checker that turns a mapping into an instance of the dataclass ``cls``."""
    if cls not in _made:
        _made[cls] = _make_checker_of_fields(cls)
    return _made[cls]


def hints_of(cls: type[Any]) -> dict[str, Any]:
    """Return field name → type hint with its bound, also of inherited fields."""
    hints = get_type_hints(cls, include_extras=True)
    return {item.name: hints[item.name] for item in fields(cls)}


def default_of(item: Field[Any]) -> Any:
    """Return the default of a dataclass field; MISSING where it is required."""
    return item.default if item.default_factory is MISSING else item.default_factory()


def shortened(text: str, bound: Bound) -> str:
    """Return prose that keeps its bound; what was cut is marked."""
    if len(text) <= bound.most:
        return text
    return text[: bound.most - len(_CUT_MARK)] + _CUT_MARK


def prose_bound(hint: Any) -> Optional[Bound]:
    """Return the bound of a field whose text may be cut; None for every other field."""
    hint, bound = _split(hint)
    return bound if hint is str and bound is not None and bound.cut else None


def _make_checker_of_fields(cls: type[Any]) -> Checker:
    checkers = {name: _checker(hint) for name, hint in hints_of(cls).items()}
    required = _required(cls)
    tolerant = issubclass(cls, TOLD)

    def check(value: Any, place: str) -> Any:
        prefix = f"{place}." if place else ""
        if not isinstance(value, dict):
            raise _wrong(value, place, "a map")
        checked = {}
        for name, item in value.items():
            checker = checkers.get(name)
            if checker is not None:
                checked[name] = checker(item, prefix + name)
            elif not tolerant:
                raise UsageError(f"unknown field {f'{prefix}{name}'[:80]!r}")
        for name in required:
            if name not in checked:
                raise UsageError(f"field '{prefix}{name}' is missing")
        return cls(**checked)

    return check


def _required(cls: type[Any]) -> list[str]:
    return [item.name for item in fields(cls) if default_of(item) is MISSING]


def _split(hint: Any) -> tuple[Any, Optional[Bound]]:
    """Return a hint without its annotation, and the bound that was in it."""
    if get_origin(hint) is not Annotated:
        return hint, None
    inner, *notes = get_args(hint)
    return inner, next((note for note in notes if isinstance(note, Bound)), None)


def _span_of(hint: Any) -> Span:
    notes = get_args(hint) if get_origin(hint) is Annotated else ()
    return next((note for note in notes if isinstance(note, Span)), ORDINARY)


def _checker(hint: Any) -> Checker:
    span = _span_of(hint)
    hint, bound = _split(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Union:
        return _checker_of_union(arguments)
    if isinstance(hint, type) and is_dataclass(hint):
        return checker_of_fields(hint)
    if hint is int:
        return _whole_number_in(span)
    if hint in _SCALARS:
        return _SCALARS[hint]
    if bound is None:
        raise TypeError(f"no bound is declared for {hint}")
    if origin is list:
        return _list_of(_checker(arguments[0]), bound)
    if origin is dict:
        return _map_of(_checker(arguments[0]), _checker(arguments[1]), bound)
    return _text_up_to(bound) if hint is str else _single_value_up_to(bound)


def _checker_of_union(members: tuple[Any, ...]) -> Checker:
    """``Optional[X]``; a word of an enumeration or another text; or one of several dataclasses."""
    present = [item for item in members if item is not type(None)]
    words = [item for item in present if isinstance(item, type) and issubclass(item, enum.Enum)]
    if len(present) == 1:
        return _optional(_checker(present[0]), or_empty=is_dataclass(present[0]))
    if words:
        (text,) = (item for item in present if item not in words)
        return _word_of(words[0], _checker(text))
    return _first_fitting(present)


def _word_of(words: type[enum.Enum], text: Checker) -> Checker:
    """A newer side may know more words than this one: an unknown word stays a text."""
    known = {item.value: item for item in words}
    return lambda value, place: known.get(checked := text(value, place), checked)


def _first_fitting(classes: list[type[Any]]) -> Checker:
    """Take the first class whose required fields are all there; the last one takes the rest."""
    candidates = [(set(_required(cls)), checker_of_fields(cls)) for cls in classes]

    def check(value: Any, place: str) -> Any:
        names = value.keys() if isinstance(value, dict) else set()
        for required, checker in candidates:
            if required <= names:
                return checker(value, place)
        return candidates[-1][1](value, place)

    return check


def _wrong(value: Any, place: str, wanted: str) -> UsageError:
    return UsageError(f"field {place[:80]!r} must be {wanted}, not {repr(value)[:60]}")


def _whole_number_in(span: Span) -> Checker:
    def check(value: Any, place: str) -> int:
        if type(value) is not int:
            raise _wrong(value, place, "a whole number")
        if not span.least <= value <= span.most:
            raise _wrong(value, place, f"a whole number from {span.least} to {span.most}")
        return value

    return check


def _number(value: Any, place: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise _wrong(value, place, "a finite number")
    return float(value)


def _truth(value: Any, place: str) -> bool:
    if type(value) is not bool:
        raise _wrong(value, place, "true or false")
    return value


def _text_up_to(bound: Bound) -> Checker:
    def check(value: Any, place: str) -> str:
        if type(value) is not str:
            raise _wrong(value, place, "a text")
        if len(value) > bound.most and not bound.cut:
            raise UsageError(f"field {place[:80]!r} is longer than {bound.most} characters")
        return shortened(value, bound)

    return check


def _single_value_up_to(bound: Bound) -> Checker:
    """Accept one text, number or truth value, but no list and no map: those could nest."""
    text = _text_up_to(bound)
    whole_number = _whole_number_in(ORDINARY)

    def check(value: Any, place: str) -> Any:
        if type(value) is str:
            return text(value, place)
        if type(value) is int:
            return whole_number(value, place)
        if value is not None and type(value) not in (int, float, bool):
            raise _wrong(value, place, "one text, number or truth value")
        return value

    return check


def _optional(inner: Checker, or_empty: bool) -> Checker:
    """``or_empty``: an empty map stands for None, as in rows whose keys are always there."""

    def check(value: Any, place: str) -> Any:
        return None if value is None or (or_empty and value == {}) else inner(value, place)

    return check


def _list_of(inner: Checker, bound: Bound) -> Checker:
    def check(value: Any, place: str) -> list[Any]:
        if type(value) is not list:
            raise _wrong(value, place, "a list")
        if len(value) > bound.most and not bound.cut:
            raise UsageError(f"field {place[:80]!r} has more than {bound.most} items")
        items = []
        for index, item in enumerate(value[: bound.most]):
            try:
                items.append(inner(item, f"{place}[{index}]"))
            except UsageError:
                if not bound.leave_out:
                    raise
        return items

    return check


def _map_of(key: Checker, inner: Checker, bound: Bound) -> Checker:
    def check(value: Any, place: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise _wrong(value, place, "a map")
        if len(value) > bound.most:
            raise UsageError(f"field {place[:80]!r} has more than {bound.most} entries")
        return {
            key(name, place): inner(item, f"{place}.{name}"[:80]) for name, item in value.items()
        }

    return check


_SCALARS: Mapping[Any, Checker] = {float: _number, bool: _truth}

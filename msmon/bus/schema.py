"""Checks of incoming values, made from the type hints of the message dataclasses.

A checker takes a plain value (as msgpack yields it) and the place where it stood,
and returns the value to use; it raises UsageError that names the place. Checkers
are made once per type.
"""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Union, get_args, get_origin

from msmon.errors import UsageError

Checker = Callable[[Any, str], Any]

MAX_DEPTH = 12
"""Nesting of lists and maps where any plain value is allowed."""

_made: dict[type[Any], Checker] = {}


class _UnionSyntax(ast.NodeTransformer):
    """Rewrites ``X | Y`` to ``Union[X, Y]``, which Python 3.9 can evaluate too."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        both = ast.Tuple([node.left, node.right], ast.Load())
        return ast.Subscript(ast.Name("Union", ast.Load()), both, ast.Load())


def _evaluate(hint: str, module: str) -> Any:
    tree = ast.fix_missing_locations(_UnionSyntax().visit(ast.parse(hint, mode="eval")))
    names = {**vars(sys.modules[module]), "Union": Union}
    return eval(compile(tree, module, "eval"), names)


def checker_of_fields(cls: type[Any]) -> Checker:
    """Return a checker that turns a mapping into an instance of the dataclass ``cls``."""
    if cls not in _made:
        _made[cls] = _make_checker_of_fields(cls)
    return _made[cls]


def _make_checker_of_fields(cls: type[Any]) -> Checker:
    checkers = {item.name: _checker(item.type, cls.__module__) for item in fields(cls)}
    required = [
        item.name
        for item in fields(cls)
        if item.default is MISSING and item.default_factory is MISSING
    ]

    def check(value: Any, place: str) -> Any:
        prefix = f"{place}." if place else ""
        if not isinstance(value, dict):
            raise _wrong(value, place, "a map")
        for name in value:
            if name not in checkers:
                raise UsageError(f"unknown field {f'{prefix}{name}'[:80]!r}")
        for name in required:
            if name not in value:
                raise UsageError(f"field '{prefix}{name}' is missing")
        return cls(
            **{name: checkers[name](item, f"{prefix}{name}") for name, item in value.items()}
        )

    return check


def _checker(hint: Any, module: str) -> Checker:
    if isinstance(hint, str):
        hint = _evaluate(hint, module)
        if isinstance(hint, str):  # a quoted part inside an alias
            return _checker(hint, module)
    arguments = get_args(hint)
    if get_origin(hint) is Union:
        (inner,) = (item for item in arguments if item is not type(None))
        return _optional(_checker(inner, module))
    if get_origin(hint) is list:
        return _list_of(_checker(arguments[0], module))
    if get_origin(hint) is dict:
        return _map_of(_checker(arguments[1], module))
    if isinstance(hint, type) and is_dataclass(hint):
        return checker_of_fields(hint)
    return _SCALARS[hint]


def _wrong(value: Any, place: str, wanted: str) -> UsageError:
    return UsageError(f"field {place!r} must be {wanted}, not {repr(value)[:60]}")


def _whole_number(value: Any, place: str) -> int:
    if type(value) is not int:
        raise _wrong(value, place, "a whole number")
    return value


def _number(value: Any, place: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise _wrong(value, place, "a finite number")
    return float(value)


def _truth(value: Any, place: str) -> bool:
    if type(value) is not bool:
        raise _wrong(value, place, "true or false")
    return value


def _text(value: Any, place: str) -> str:
    if type(value) is not str:
        raise _wrong(value, place, "a text")
    return value


def _plain(value: Any, place: str, depth: int = 1) -> Any:
    """Accept any value made of plain ones, down to ``MAX_DEPTH``."""
    if depth > MAX_DEPTH:
        raise UsageError(f"field {place[:80]!r} is nested too deep")
    if type(value) is dict:
        for key, item in value.items():
            _plain(item, f"{place}.{_text(key, place)}", depth + 1)
    elif type(value) is list:
        for item in value:
            _plain(item, place, depth + 1)
    return value


def _optional(inner: Checker) -> Checker:
    return lambda value, place: None if value is None else inner(value, place)


def _list_of(inner: Checker) -> Checker:
    def check(value: Any, place: str) -> list[Any]:
        if type(value) is not list:
            raise _wrong(value, place, "a list")
        return [inner(item, f"{place}[{index}]") for index, item in enumerate(value)]

    return check


def _map_of(inner: Checker) -> Checker:
    def check(value: Any, place: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise _wrong(value, place, "a map")
        return {
            _text(key, place): inner(item, f"{place}.{key}"[:80]) for key, item in value.items()
        }

    return check


_SCALARS: dict[Any, Checker] = {
    int: _whole_number,
    float: _number,
    bool: _truth,
    str: _text,
    Any: _plain,
}

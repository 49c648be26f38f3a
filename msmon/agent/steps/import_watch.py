"""Runs something right after a module has been imported, without importing it.

A finder is put at the head of ``sys.meta_path``. For the few modules that it waits for, it asks
the other finders and extends what they find by a call after the module's code. For any other
module it finds nothing, so that the import goes on as ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

OnImport = Callable[[ModuleType], None]


class ImportWatch(MetaPathFinder):
    """Calls ``on_import[name]`` once per module, on the thread that imports it.

    Written by threads that import, each for the module whose import lock it holds.
    ``report`` gets the text of what a call raises; the import goes on.
    """

    def __init__(self, on_import: dict[str, OnImport], report: Callable[[str], None]) -> None:
        self._waiting = dict(on_import)
        self._report = report
        self._searching: set[str] = set()

    def start(self) -> None:
        """Call for modules that are there already, and watch for the others."""
        for name in list(self._waiting):
            module = sys.modules.get(name)
            if module is not None:
                self._call(name, module)
        if self._waiting:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders have, extended; None for other modules."""
        if name not in self._waiting or name in self._searching:
            return None
        self._searching.add(name)  # another watch asks all finders too, so us again
        try:
            return self._found_by_others(name, path, target)
        finally:
            self._searching.discard(name)

    def _found_by_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._extend(name, spec)
                return spec
        return None

    def _extend(self, name: str, spec: ModuleSpec) -> None:
        loader = spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # another watch may have removed it
            execute(module)
            self._call(name, module)

        try:
            loader.exec_module = exec_module  # type: ignore[method-assign]
        except AttributeError:  # a loader with fixed attributes: do without
            self._report(f"can't watch the import of {name}")

    def _call(self, name: str, module: ModuleType) -> None:
        on_import = self._waiting.pop(name, None)
        if on_import is None:
            return
        try:
            on_import(module)
        except Exception as error:  # noqa: BLE001  boundary: an import of the job must not fail
            self._report(f"{name}: {type(error).__name__}: {error}")
        if not self._waiting and self in sys.meta_path:
            sys.meta_path.remove(self)

"""The architecture: which room may import which, and how light the imports stay."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest

import msmon

ROOT = Path(msmon.__file__).parent

DOMAIN = {
    *("accounts", "bounds", "errors", "logs", "threads", "vocabulary"),
    *("records", "settings", "sessions"),
}

ALLOWED_ROOMS = {
    "accounts": {"sessions"},
    "bounds": set(),
    "errors": set(),
    "logs": set(),
    "threads": set(),
    "vocabulary": set(),
    "records": {"bounds", "errors"},
    "settings": {"errors", "records"},
    "sessions": {"bounds", "errors", "records", "settings", "vocabulary"},
    "ffi": DOMAIN,
    "simulation": DOMAIN | {"ffi"},
    "recording": DOMAIN | {"ffi", "simulation"},
    "formats": DOMAIN,
    "monitor_api": DOMAIN | {"formats", "recording"},
    "bus": DOMAIN,
    "agent": DOMAIN | {"ffi", "recording", "bus"},
    "sinks": DOMAIN,
    "daemon": DOMAIN | {"bus", "sinks"},
    "insight": DOMAIN,
    "live": DOMAIN | {"bus", "insight"},
    "conversion": DOMAIN | {"formats", "sinks"},
    "analysis": DOMAIN | {"insight", "conversion", "sinks"},
    "diagnosis": DOMAIN | {"ffi", "recording", "bus", "agent"},
    "commands": DOMAIN
    | {"bus", "daemon", "sinks", "conversion", "insight", "live", "analysis", "diagnosis"},
    "compat": DOMAIN | {"recording", "monitor_api", "bus", "agent", "commands"},
    "msmon": set(),
}
"""Room → the other rooms that it may import. A room is a package or module right below msmon."""

MAX_FILES = 15
"""Modules in one folder: more than this is two rooms."""

AGENT_PATH = (
    *DOMAIN,
    *("ffi", "simulation", "recording"),
    *("formats", "monitor_api", "bus", "agent"),
)
"""What lives inside the training process."""

AGENT_LIBRARIES = {
    **{room: {"numpy"} for room in AGENT_PATH},
    "bus": {"msgpack", "numpy", "zmq"},
    "agent": {"msgpack", "numpy", "zmq"},
}
"""Room of the agent's path → the libraries it may import when it is loaded."""

HEAVY = {
    "ctypes",
    "msgpack",
    "numpy",
    "zmq",
    "click",
    "psutil",
    "rich",
    "tensorboard",
    "xlsxwriter",
}


@dataclass(frozen=True)
class Import:
    """One imported module; ``deferred`` when it happens inside a function."""

    target: str
    line: int
    deferred: bool


FACADES = {"msmon.mspti": "compat"}
"""Top modules that only hand out names of a room, so that users find them."""


def room_of(module: str) -> str:
    if module in FACADES:
        return FACADES[module]
    return [*module.split("."), "msmon"][1]


def source_files() -> dict[str, Path]:
    files = {}
    for path in sorted(ROOT.rglob("*.py")):
        names = ["msmon", *path.relative_to(ROOT).with_suffix("").parts]
        files[".".join(names[:-1] if names[-1] == "__init__" else names)] = path
    return files


SOURCES = source_files()


@functools.cache
def imports_of(module: str) -> tuple[Import, ...]:
    return tuple(_imports_of(module))


def _imports_of(module: str) -> Iterator[Import]:
    tree = ast.parse(SOURCES[module].read_text(encoding="utf-8"))
    deferred = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}:{node.lineno} imports relatively"
            base = str(node.module)
            members = [f"{base}.{alias.name}" for alias in node.names]
            targets = [name if name in SOURCES else base for name in members]
        else:
            continue
        for target in dict.fromkeys(targets):
            yield Import(target, node.lineno, id(node) in deferred)


def ours(target: str) -> bool:
    return target.split(".")[0] == "msmon"


@pytest.mark.parametrize("module", SOURCES)
def test_arrows_point_one_way(module: str) -> None:
    allowed = ALLOWED_ROOMS[room_of(module)] | {room_of(module)}
    against = [
        f"{SOURCES[module]}:{item.line} imports {item.target}"
        for item in imports_of(module)
        if ours(item.target) and item.target != "msmon" and room_of(item.target) not in allowed
    ]
    assert not against


def test_no_import_cycles() -> None:
    graph = {
        module: {item.target for item in imports_of(module) if item.target in SOURCES}
        for module in SOURCES
    }
    finished: set[str] = set()

    def walk(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " → ".join((*trail[trail.index(module) :], module))
        if module in finished:
            return
        for target in sorted(graph[module]):
            walk(target, (*trail, module))
        finished.add(module)

    for module in graph:
        walk(module, ())


@pytest.mark.parametrize("module", [name for name in SOURCES if room_of(name) in AGENT_PATH])
def test_agent_path_names_few_libraries(module: str) -> None:
    own_libraries = AGENT_LIBRARIES[room_of(module)]
    installed = {"click", "msgpack", "numpy", "psutil", "rich", "tensorboard", "xlsxwriter", "zmq"}
    against = [
        f"{SOURCES[module]}:{item.line} imports {item.target}"
        for item in imports_of(module)
        if not item.deferred and item.target.split(".")[0] in installed - own_libraries
    ]
    assert not against


FOLDERS = sorted({path.parent for path in SOURCES.values()})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_folder_is_small_and_says_what_belongs_in_it(folder: Path) -> None:
    assert len(list(folder.glob("*.py"))) <= MAX_FILES
    assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))


def run_python(source: str) -> list[str]:
    """Run ``source`` in a fresh interpreter and return the list that it prints as JSON."""
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", source], capture_output=True, text=True, timeout=60
    )
    assert finished.returncode == 0, finished.stderr
    printed: list[str] = json.loads(finished.stdout)
    return printed


def test_agent_path_loads_few_libraries() -> None:
    modules = [name for name in SOURCES if room_of(name) in AGENT_PATH]
    loaded = run_python(
        f"""
import importlib, json, sys
before = set(sys.modules)
for name in {modules!r}:
    importlib.import_module(name)
new = set(sys.modules) - before
installed = [
    name for name in new
    if "site-packages" in (getattr(sys.modules[name], "__file__", None) or "")
]
print(json.dumps(sorted({{name.split(".")[0] for name in installed}})))
"""
    )
    # numpy and pyzmq bring this one where an older Python needs it
    assert set(loaded) <= {"msmon", "msgpack", "numpy", "zmq", "typing_extensions"}


def test_a_command_that_asks_a_daemon_starts_without_numpy() -> None:
    """Numpy takes longer to load than all the rest of the command line."""
    loaded = run_python(
        """
import json, sys
import msmon.bus.messages, msmon.commands.main, msmon.commands.asking.connection
import msmon.settings.trace_options
print(json.dumps([name for name in ("numpy", "torch") if name in sys.modules]))
"""
    )
    assert loaded == []


def test_importing_msmon_is_light() -> None:
    surprises = run_python(
        f"""
import json, sys
surprises = []
def watch(event, arguments):
    if event == "open" and not str(arguments[0]).endswith((".py", ".pyc")):
        surprises.append(f"opened {{arguments[0]}}")
    if event.startswith(("socket.", "subprocess.", "os.fork", "ctypes.dlopen", "_thread.start")):
        surprises.append(event)
sys.addaudithook(watch)
import msmon
surprises += sorted(set(sys.modules) & {HEAVY!r})
print(json.dumps(surprises))
"""
    )
    assert surprises == []


def test_public_names_are_pinned() -> None:
    names = ["init", "mindspore_callback", "set_step", "shutdown", "step", "__version__"]
    assert msmon.__all__ == ["ActivityKind", "Monitor", *names]


@pytest.mark.parametrize("name", msmon.__all__)
def test_public_names_resolve(name: str) -> None:
    assert getattr(msmon, name)


def test_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="profile"):
        _ = msmon.profile


def test_entry_points_resolve() -> None:
    declared = [
        entry
        for entry in distribution("msmon").entry_points
        if entry.group in {"console_scripts", "msmon.sinks"}
    ]
    assert declared
    for entry in declared:
        module, _, attribute = entry.value.partition(":")
        assert hasattr(importlib.import_module(module), attribute), entry.value


PATCHED_BY_JOBS = {"threading", "queue", "select"}
"""Modules whose contents gevent and eventlet replace; msmon.threads has what we need of them."""


@pytest.mark.parametrize("module", [name for name in SOURCES if room_of(name) in AGENT_PATH])
def test_threads_and_locks_in_the_job_are_the_systems(module: str) -> None:
    if room_of(module) == "simulation" or module == "msmon.threads":
        return  # the first is no part of a real job, the second only names types
    assert not [item for item in imports_of(module) if item.target in PATCHED_BY_JOBS]

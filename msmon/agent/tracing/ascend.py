"""What the Ascend profilers of torch_npu and MindSpore have in common.

Both write raw data into a new directory and parse it afterwards. We parse in a process of its
own, for two reasons: it does not hold the GIL while the job makes steps, and it works in daemonic
processes, to which multiprocessing allows no children. Both profilers print errors and raise
nothing (``no_exception_func``), so a trace counts as written only if its files are there.
"""

from __future__ import annotations

import inspect
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from msmon.agent.tracing.backend import Keywords, arguments, listed, not_honoured
from msmon.agent.tracing.plan import TracePlan
from msmon.settings.trace_options import TRACE_OPTION
from msmon.threads import UNBLOCK

ENDLESS = 2**31 - 1
"""Active steps of the schedule of a trace that is limited by time."""

INFO_FILES = "profiler_info*.json"
"""Written into the directory of the raw data by a profiler that has stopped as it should."""

OUTPUT_DIRECTORY = "ASCEND_PROFILER_OUTPUT"
"""Where parsing puts its results, inside the directory of the raw data."""

NOT_INHERITED = ("MSMONITOR_USE_DAEMON", "KINETO_USE_DAEMON")
"""Variables that would start an agent in the parsing process."""

_SHOWN_CHARACTERS = 300

EXPERIMENTAL: dict[str, Keywords] = {
    "l2_cache": lambda value: {"l2_cache": value},
    "msprof_tx": lambda value: {"mstx": value},
    "data_simplification": lambda value: {"data_simplification": value == "true"},
    "mstx_domain_include": listed("mstx_domain_include"),
    "mstx_domain_exclude": listed("mstx_domain_exclude"),
    "sys_io": lambda value: {"sys_io": value},
    "sys_interconnection": lambda value: {"sys_interconnection": value},
}
"""Options of a trace → arguments of both ``_ExperimentalConfig`` classes."""

Need = tuple[Callable[[Mapping[str, Any]], bool], str]
"""Whether the other options let an option take effect, and what it needs."""

_MARKERS: Need = (lambda options: options["msprof_tx"], "--msprof-tx")

NEEDS: dict[str, Need] = {
    "aic_metrics": (
        lambda options: options["profiler_level"] in ("Level1", "Level2"),
        "--profiler-level Level1 or Level2",
    ),
    "mstx_domain_include": _MARKERS,
    "mstx_domain_exclude": _MARKERS,
}
"""Options that both frameworks silently reset to their defaults unless another one is given:
torch_npu in ``experimental_config.py``, MindSpore in ``profiler_parameters.py``."""


class AscendBackend:
    """See :class:`msmon.agent.tracing.backend.Backend`; subclasses name the framework's parts.

    Written by the thread that steps, or by the one that ends the process (never both at a time,
    see :class:`~msmon.agent.tracing.tracer.Tracer`).
    """

    name: str = ""
    OPTIONS: ClassVar[Mapping[str, Keywords]] = {}
    """Options of a trace → arguments of ``profile``."""
    EXPERIMENTAL_OPTIONS: ClassVar[Mapping[str, Keywords]] = {}
    NEEDS: ClassVar[Mapping[str, Need]] = NEEDS
    ANALYSE: ClassVar[str] = ""
    """Python program that parses the directory in ``sys.argv[1]``; ``sys.argv[2]`` is "true" or
    "false": whether intermediate data is deleted."""

    def __init__(self, plan: TracePlan) -> None:
        module, options = self._module(), plan.options
        self._plan = plan
        self._directory = os.path.realpath(
            plan.directory
        )  # both profilers refuse a path with a link
        self._profiler: Any = None
        self._before: set[str] = set()
        self._step = self._first = 0
        usable = _usable(module.profile, self.OPTIONS, options)
        experimental = _usable(module._ExperimentalConfig, self.EXPERIMENTAL_OPTIONS, options)
        self._arguments = arguments(options, usable)
        self._config = module._ExperimentalConfig(**arguments(options, experimental))
        self.left_out = not_honoured(options, usable, experimental) + self._without_effect()

    def begin(self, step: int, first: int) -> None:
        """Start the profiler; its schedule counts the warm-up."""
        self._before = set(os.listdir(self._directory))
        self._step, self._first = step, first
        self._profiler = self._make_profiler(step, warmup=first - step)
        self._profiler.start()

    def step(self, step: int) -> None:
        """Tell the profiler that a step begins."""
        self._step = step
        self._profiler.step()

    def end(self) -> None:
        """Stop the profiler, by its schedule where that has come to its end."""
        profiler, self._profiler = self._profiler, None
        if self._step == self._first + self._plan.iterations - 1:
            profiler.step()
        profiler.stop()

    def write(self, first: int, last: int) -> tuple[str, ...]:
        """Return the directory of the raw data, parsed where that was asked for.

        Raises RuntimeError when there is none, it is incomplete, or parsing fails.
        """
        owner = f"{socket.gethostname()}_{os.getpid()}_"
        new = sorted(set(os.listdir(self._directory)) - self._before)
        paths = [Path(self._directory, name) for name in new if name.startswith(owner)]
        paths = [path for path in paths if _is_own_directory(path)]
        if not paths:
            raise RuntimeError("the profiler has written nothing; the job's output may say why")
        for path in paths:
            if not any(path.glob(INFO_FILES)):
                raise RuntimeError(
                    f"the profiler has failed and left only parts in {path}; "
                    "the job's output may say why"
                )
            if self._plan.options["analyse"]:
                self._parse(path)
        return tuple(str(path) for path in paths)

    def discard(self) -> None:
        """Stop the profiler; its raw data stays."""
        if self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            profiler.stop()

    def _module(self) -> Any:
        raise NotImplementedError

    def _without_effect(self) -> tuple[str, ...]:
        """Return the flags of options that lack another one, with what they need."""
        options = self._plan.options
        return tuple(
            f"{TRACE_OPTION[name].flag} (needs {what})"
            for name, (is_met, what) in self.NEEDS.items()
            if options[name] != TRACE_OPTION[name].default and not is_met(options)
        )

    def _make_profiler(self, step: int, warmup: int) -> Any:
        """Return a profiler that has not been started. Raises RuntimeError for a bad path."""
        module = self._module()
        handler = module.tensorboard_trace_handler(self._directory, analyse_flag=False)
        if handler is None:
            raise RuntimeError(f"it refuses the path {self._directory}; the job's output says why")
        active = self._plan.iterations or ENDLESS
        return module.profile(
            **self._arguments,
            schedule=module.schedule(wait=0, warmup=warmup, active=active, repeat=1),
            on_trace_ready=handler,
            experimental_config=self._config,
        )

    def _parse(self, path: Path) -> None:
        simplify = self._plan.options["data_simplification"]
        done = subprocess.run(
            [sys.executable, "-c", UNBLOCK + self.ANALYSE, str(path), simplify],
            env=_parsing_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        said = done.stdout.decode(errors="replace").strip()[-_SHOWN_CHARACTERS:]
        if done.returncode:
            raise RuntimeError(f"parsing {path} ended with code {done.returncode}: {said}")
        results = path / OUTPUT_DIRECTORY
        if not results.is_dir() or not any(results.iterdir()):
            raise RuntimeError(f"parsing {path} has left no results: {said}")


def _is_own_directory(path: Path) -> bool:
    """Whether a path is a directory that this user has made, and no link.

    The directory of a trace may be shared. What another user puts there under a name of this
    process is not parsed: parsing writes into it, and would follow the links in it.
    """
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _usable(
    framework: Callable[..., Any], table: Mapping[str, Keywords], options: Mapping[str, Any]
) -> dict[str, Keywords]:
    """Return the part of a table that the version of the framework in this process has."""
    known = inspect.signature(framework).parameters.keys()

    def is_known(name: str, keywords: Keywords) -> bool:
        try:
            return known >= keywords(options[name]).keys()
        except AttributeError:  # an enumeration without this member
            return False

    return {name: keywords for name, keywords in table.items() if is_known(name, keywords)}


def _parsing_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the parsing process: no rank, and without MSPTI."""
    kept = {name: text for name, text in environ.items() if name not in NOT_INHERITED}
    preloaded = kept.pop("LD_PRELOAD", "").replace(":", " ").split()
    others = [path for path in preloaded if not Path(path).name.startswith("libmspti")]
    if others:
        kept["LD_PRELOAD"] = ":".join(others)
    return kept

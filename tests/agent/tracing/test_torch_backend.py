"""torch.profiler's file in a directory that others may write in."""

from __future__ import annotations

import os
import stat
import sys
import types
from pathlib import Path

import pytest

from msmon.agent.tracing.backend import make_backend
from msmon.agent.tracing.plan import TracePlan
from msmon.settings.trace_options import check_trace

TRACE = '{"traceEvents": []}'


class Profile:
    """Writes where it is told to, as the real one does; ``attack`` is called just before."""

    attack = staticmethod(lambda path: None)

    def __init__(self, **arguments) -> None:
        pass

    def prepare_trace(self) -> None:
        pass

    start_trace = stop_trace = prepare_trace

    def export_chrome_trace(self, path: str) -> None:
        self.attack(Path(path))
        Path(path).write_text(TRACE)


@pytest.fixture
def profile(monkeypatch):
    """Install a stand-in for PyTorch, whose profiler is on."""

    class Annotation:
        __init__ = __enter__ = __exit__ = lambda *_: None

    activity = types.SimpleNamespace(CPU=0)
    profile = type("Profile", (Profile,), {})
    profiler = types.SimpleNamespace(
        ProfilerActivity=activity,
        supported_activities=lambda: {0},
        record_function=Annotation,
        _KinetoProfile=profile,
    )
    torch = types.ModuleType("torch")
    torch.profiler = profiler
    autograd = types.ModuleType("torch.autograd")
    autograd._profiler_enabled = lambda: True
    monkeypatch.setitem(sys.modules, "torch.autograd", autograd)
    for name in ("torch_npu", "mindspore"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return profile


def traced(directory: Path) -> tuple[str, ...]:
    """Trace two steps, and return the files."""
    fields = {"iterations": 2, "log_file": str(directory)}
    backend = make_backend(TracePlan("t", check_trace(fields), "node_1_rank0"))
    backend.begin(10, 10)
    backend.end()
    return backend.write(10, 11)


def test_the_unfinished_file_lies_where_nobody_else_can_put_anything(profile, tmp_path):
    seen = []
    tmp_path.chmod(0o777)
    profile.attack = staticmethod(lambda path: seen.append(os.stat(path.parent)))
    (file,) = traced(tmp_path)
    (status,) = seen
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o700, os.geteuid())
    assert Path(file).read_text() == TRACE
    assert os.listdir(tmp_path) == [Path(file).name]


def test_a_directory_exchanged_for_a_link_leads_nowhere(profile, tmp_path):
    shared, home = tmp_path / "shared", tmp_path / "home"
    shared.mkdir()
    home.mkdir()

    def exchange(path: Path) -> None:
        (private,) = shared.iterdir()
        private.rename(shared / "former")
        private.symlink_to(home)
        (home / path.name).write_text("precious")

    profile.attack = staticmethod(exchange)
    (file,) = traced(shared)
    assert Path(file).read_text() == TRACE
    assert [path.read_text() for path in home.iterdir()] == ["precious"]


def test_a_link_at_the_final_name_is_replaced_and_not_followed(profile, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    shared = tmp_path / "shared"
    shared.mkdir()
    profile.attack = staticmethod(lambda path: (shared / path.name).symlink_to(precious))
    (file,) = traced(shared)
    assert (Path(file).is_symlink(), precious.read_text()) == (False, "precious")
    assert Path(file).read_text() == TRACE


def test_nothing_is_left_when_the_profiler_fails(profile, tmp_path):
    def fail(path: Path) -> None:
        path.write_text("half of it")
        raise RuntimeError("no space")

    profile.attack = staticmethod(fail)
    with pytest.raises(RuntimeError, match="no space"):
        traced(tmp_path)
    assert not os.listdir(tmp_path)

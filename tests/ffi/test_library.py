"""Finding and loading libmspti.so: each order, each refusal, with real libraries.

Every case runs in a process of its own, as a library is loaded once and for good.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from native.build import build_stub

from msmon.ffi.cann_libraries import CALLED_FUNCTIONS

_LOAD = """
import sys
from msmon.errors import MsmonError
from msmon.ffi import library
library.DEFAULT_ROOTS = ("~/Ascend/ascend-toolkit/latest", "~/Ascend/cann")
try:
    mspti = library.load()
    handle = mspti.subscribe()
    print(mspti.origin)
except MsmonError as error:
    print(type(error).__name__, error)
"""


def _run(environ: dict[str, str], code: str = _LOAD) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=30,
        check=True,
    )
    return run.stdout


@pytest.fixture
def bare(cann_environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """An environment that names no CANN, whose library aborts where MSPTI does."""
    del cann_environ["ASCEND_HOME_PATH"]
    cann_environ.pop("LD_LIBRARY_PATH", None)
    home = tmp_path / "home"
    home.mkdir()
    return {**cann_environ, "HOME": str(home), "MSPTI_DOUBLE_NEEDS_CANN": "1"}


@pytest.fixture
def own_root(cann_root: Path, tmp_path: Path) -> Path:
    """A CANN root that a test may take parts out of."""
    return Path(shutil.copytree(cann_root, tmp_path / "own"))


@pytest.mark.parametrize("variable", ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"])
def test_found_by_the_variables_of_cann(
    bare: dict[str, str], cann_root: Path, variable: str
) -> None:
    origin = _run({**bare, variable: str(cann_root)})
    assert origin == f"{cann_root}/lib64/libmspti.so (found by {variable})\n"


def test_msmon_libmspti_goes_first(bare: dict[str, str], cann_root: Path, own_root: Path) -> None:
    named = own_root / "lib64" / "libmspti.so"
    environ = {**bare, "MSMON_LIBMSPTI": str(named), "ASCEND_HOME_PATH": str(cann_root)}
    assert _run(environ) == f"{named} (named by MSMON_LIBMSPTI)\n"


@pytest.mark.parametrize("place", ["Ascend/ascend-toolkit/latest", "Ascend/cann"])
def test_found_in_the_default_places(bare: dict[str, str], cann_root: Path, place: str) -> None:
    root = Path(bare["HOME"]) / place
    root.parent.mkdir(parents=True)
    root.symlink_to(cann_root)
    assert _run(bare) == f"{root}/lib64/libmspti.so (found in a default place of CANN)\n"


def test_found_on_the_loaders_path(bare: dict[str, str], cann_root: Path) -> None:
    libraries = cann_root / "lib64"
    origin = _run({**bare, "LD_LIBRARY_PATH": f"/nowhere:{libraries}"})
    assert origin == f"{libraries}/libmspti.so (found on the loader's path)\n"


def test_a_preloaded_library_is_the_one_that_is_used(bare: dict[str, str], cann_root: Path) -> None:
    path = cann_root / "lib64" / "libmspti.so"
    environ = {
        **bare,
        "LD_PRELOAD": str(path),
        "LD_LIBRARY_PATH": str(path.parent),
        "MSMON_LIBMSPTI": "/nowhere/libmspti.so",
    }
    assert _run(environ) == f"{path} (already in the process through LD_PRELOAD)\n"


def test_preloading_opens_the_kinds_that_need_it(bare: dict[str, str], cann_root: Path) -> None:
    libraries = cann_root / "lib64"
    environ = {
        **bare,
        "LD_PRELOAD": str(libraries / "libmspti.so"),
        "LD_LIBRARY_PATH": str(libraries),
    }
    enable = "mspti.enable(ActivityKind.Memory); print('enabled')"
    code = f"from msmon.records.kinds import ActivityKind\n{_LOAD}\n{enable}"
    assert _run(environ, code).splitlines()[1] == "enabled"


def test_a_library_that_somebody_else_loaded_is_the_one_that_is_used(
    bare: dict[str, str], cann_root: Path, own_root: Path
) -> None:
    path = own_root / "lib64" / "libmspti.so"
    environ = {**bare, "ASCEND_HOME_PATH": str(cann_root)}
    origin = _run(environ, f"import ctypes; ctypes.CDLL({str(path)!r})\n{_LOAD}")
    assert origin == f"{path} (already in the process)\n"


def test_a_missing_file_named_by_the_variable_is_said(bare: dict[str, str]) -> None:
    said = _run({**bare, "MSMON_LIBMSPTI": "/nowhere/libmspti.so"})
    assert "MSMON_LIBMSPTI names /nowhere/libmspti.so, and there is no such file" in said


def test_a_wrong_preload_is_said(bare: dict[str, str], cann_root: Path) -> None:
    environ = {**bare, "LD_PRELOAD": "/nowhere/libmspti.so", "ASCEND_HOME_PATH": str(cann_root)}
    said = _run(environ)
    assert "LD_PRELOAD names /nowhere/libmspti.so, but it is not loaded" in said
    assert "there is no such file" in said


def test_a_preload_that_was_set_too_late_is_said(bare: dict[str, str], cann_root: Path) -> None:
    path = cann_root / "lib64" / "libmspti.so"
    said = _run(bare, f"import os; os.environ['LD_PRELOAD'] = {str(path)!r}\n{_LOAD}")
    assert "set after the process had started" in said


def test_absence_lists_where_was_searched(bare: dict[str, str]) -> None:
    said = _run({**bare, "ASCEND_HOME_PATH": "/nowhere/cann"})
    assert said.startswith("LibraryUnavailable there is no libmspti.so in /nowhere/cann/lib64, ")
    assert "nor on the loader's path" in said
    assert "MSMON_SIMULATE=1" in said


@pytest.mark.parametrize("name", ["libprofapi.so", "libascendalog.so", "libascend_hal.so"])
def test_a_missing_library_of_cann_is_refused_before_mspti_aborts(
    bare: dict[str, str], own_root: Path, name: str
) -> None:
    (own_root / "lib64" / name).unlink()
    said = _run({**bare, "ASCEND_HOME_PATH": str(own_root)})
    assert f"needs CANN's {name}, which can't be loaded" in said
    assert "would abort the process" in said


def test_without_the_check_the_process_would_abort(bare: dict[str, str], own_root: Path) -> None:
    (own_root / "lib64" / "libprofapi.so").unlink()
    path = own_root / "lib64" / "libmspti.so"
    with pytest.raises(subprocess.CalledProcessError) as ended:
        _run(bare, f"import ctypes; ctypes.CDLL({str(path)!r})")
    assert ended.value.returncode == -signal.SIGABRT


def test_libraries_that_mspti_can_do_without_are_only_mentioned(
    bare: dict[str, str], own_root: Path
) -> None:
    for name in ("libascendcl.so", "libhccl.so"):
        (own_root / "lib64" / name).unlink()
    origin = _run({**bare, "ASCEND_HOME_PATH": str(own_root)})
    assert origin.endswith("(found by ASCEND_HOME_PATH), without libascendcl.so and libhccl.so\n")


def test_a_file_that_is_no_library_is_said(bare: dict[str, str], own_root: Path) -> None:
    (own_root / "lib64" / "libmspti.so").write_text("not ELF")
    said = _run({**bare, "ASCEND_HOME_PATH": str(own_root)})
    assert "(found by ASCEND_HOME_PATH) can't be loaded: " in said


def test_a_library_without_the_functions_is_said(bare: dict[str, str], own_root: Path) -> None:
    libraries = own_root / "lib64"
    shutil.copy(libraries / "libhccl.so", libraries / "libmspti.so")
    said = _run({**bare, "ASCEND_HOME_PATH": str(own_root)})
    assert "exports none of MSPTI's functions" in said


def test_loading_is_local_and_happens_once(bare: dict[str, str], cann_root: Path) -> None:
    code = f"""{_LOAD}
import ctypes
print(library.load() is mspti, hasattr(ctypes.CDLL(None), "msptiSubscribe"))
"""
    said = _run({**bare, "ASCEND_HOME_PATH": str(cann_root)}, code)
    assert said.splitlines()[1] == "True False"


@pytest.mark.parametrize(
    ("library", "function"),
    [
        ("libprofapi.so", "MsprofRegisterProfileCallback"),
        ("libascendalog.so", "CheckLogLevelForC"),
        ("libascend_hal.so", "halGetAPIVersion"),
        ("libascend_hal.so", "halProfDataFlush"),
        ("libascend_hal.so", "prof_stop"),
    ],
)
def test_a_missing_function_of_cann_is_refused_before_mspti_aborts(
    bare: dict[str, str], own_root: Path, library: str, function: str
) -> None:
    others = [name for name in CALLED_FUNCTIONS[library] if name != function]
    build_stub(own_root / "lib64" / library, others)
    said = _run({**bare, "ASCEND_HOME_PATH": str(own_root)})
    assert f"{library} has no function {function}, which " in said
    assert "MSPTI would abort the process" in said


def test_without_the_look_at_functions_the_process_would_abort(
    bare: dict[str, str], own_root: Path
) -> None:
    build_stub(own_root / "lib64" / "libascend_hal.so", [])
    path = own_root / "lib64" / "libmspti.so"
    subscribe = "msptiSubscribe(ctypes.byref(ctypes.c_void_p()), None, None)"
    code = f"import ctypes; ctypes.CDLL({str(path)!r}).{subscribe}"
    with pytest.raises(subprocess.CalledProcessError) as ended:
        _run({**bare, "ASCEND_HOME_PATH": str(own_root)}, code)
    assert ended.value.returncode == -signal.SIGABRT


def test_a_function_that_this_version_of_mspti_does_not_call_may_be_missing(
    bare: dict[str, str], own_root: Path
) -> None:
    others = [name for name in CALLED_FUNCTIONS["libascend_hal.so"] if name != "prof_channel_poll"]
    build_stub(own_root / "lib64" / "libascend_hal.so", others)
    assert "found by ASCEND_HOME_PATH" in _run({**bare, "ASCEND_HOME_PATH": str(own_root)})

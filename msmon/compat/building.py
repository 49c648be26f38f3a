"""Puts ``msmon-autostart.pth`` beside the packages when a wheel is built.

setuptools has no place for such a file: package data lies inside packages, and data files
go elsewhere. pyproject.toml names this class; only building imports it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from setuptools import Command
from setuptools.command.build import build

AUTOSTART = Path(__file__).with_name("msmon-autostart.pth")


class BuildAutostart(Command):
    """A part of ``build``: see setuptools' SubCommand protocol."""

    description = "put the file that starts the agent in ranks into the wheel"
    user_options: ClassVar[list[tuple[str, str, str]]] = []
    editable_mode = False

    def initialize_options(self) -> None:
        """Nothing can be chosen."""
        self.build_lib: str | None = None

    def finalize_options(self) -> None:
        """Find out where the wheel is put together."""
        if self.editable_mode:  # such a wheel takes nothing from the build directory
            self.set_undefined_options("install", ("install_lib", "build_lib"))
        else:
            self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        """Copy the file."""
        assert self.build_lib is not None
        self.mkpath(self.build_lib)
        self.copy_file(str(AUTOSTART), str(Path(self.build_lib, AUTOSTART.name)))

    def get_source_files(self) -> list[str]:
        """Return what a source distribution must have."""
        return [str(AUTOSTART.relative_to(Path.cwd()))]

    def get_outputs(self) -> list[str]:
        """Return what was built."""
        return [str(Path(self.build_lib or "", AUTOSTART.name))]

    def get_output_mapping(self) -> dict[str, str]:
        """Return nothing: an editable wheel holds a copy."""
        return {}


class Build(build):
    """``build`` with our part in it."""

    sub_commands: ClassVar[list[Any]] = [*build.sub_commands, ("build_autostart", None)]

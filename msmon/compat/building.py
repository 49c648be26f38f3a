"""Adds ``msmon-autostart.pth`` to the top directory of a wheel while it is built.

setuptools has no option for that: it puts package data inside packages, and data files outside
of site-packages. pyproject.toml names :class:`Build`; only the build imports this module.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from setuptools import Command
from setuptools.command.build import build

AUTOSTART = Path(__file__).with_name("msmon-autostart.pth")


class BuildAutostart(Command):
    """A part of the command ``build``, by the SubCommand protocol of setuptools."""

    description = "put the file that starts the agent in ranks into the wheel"
    user_options: ClassVar[list[tuple[str, str, str]]] = []
    editable_mode = False

    def initialize_options(self) -> None:
        """Begin without a directory. setuptools calls this first."""
        self.build_lib: str | None = None

    def finalize_options(self) -> None:
        """Get the directory whose files become the wheel."""
        if self.editable_mode:  # An editable wheel doesn't use the build directory.
            self.set_undefined_options("install", ("install_lib", "build_lib"))
        else:
            self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        """Copy the file into that directory."""
        assert self.build_lib is not None
        self.mkpath(self.build_lib)
        self.copy_file(str(AUTOSTART), str(Path(self.build_lib, AUTOSTART.name)))

    def get_source_files(self) -> list[str]:
        """Return the files that a source distribution needs for this."""
        return [str(AUTOSTART.relative_to(Path.cwd()))]

    def get_outputs(self) -> list[str]:
        """Return the files that ``run`` writes."""
        return [str(Path(self.build_lib or "", AUTOSTART.name))]

    def get_output_mapping(self) -> dict[str, str]:
        """Return nothing: an editable wheel holds a copy, no reference to the source."""
        return {}


class Build(build):
    """The command ``build`` and :class:`BuildAutostart`."""

    sub_commands: ClassVar[list[Any]] = [*build.sub_commands, ("build_autostart", None)]

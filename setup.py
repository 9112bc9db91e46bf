"""Builds the extension kvtier._core by driving one CMake build, kept between calls so that only
what changed is compiled again. Runs in the build's own process; not meant to be imported.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class CMakeBuild(build_ext):
    """Configures and builds the CMake target `_core`, then copies it where setuptools wants it."""

    def run(self) -> None:
        # setuptools clears `inplace` while it builds, so what was asked for is noted here.
        self._is_development = bool(self.inplace) or bool(getattr(self, "editable_mode", False))
        super().run()

    def build_extension(self, ext: Extension) -> None:
        build_folder = ROOT / "build" / f"extension-{sysconfig.get_config_var('SOABI')}"
        self._configure(build_folder)
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
        _run("cmake", "--build", str(build_folder), "--target", "_core", "--parallel", jobs)
        stage = build_folder / "stage"
        install = ["cmake", "--install", str(build_folder), "--component", "python"]
        # A wheel goes without debug information; a development build keeps it for backtraces.
        strip = [] if self._is_development else ["--strip"]
        _run(*install, "--prefix", str(stage), *strip)
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        # A rename gives the file a new inode: a process that has the old one mapped keeps it whole.
        partial = target.with_name(target.name + ".partial")
        shutil.copy2(stage / "kvtier" / target.name, partial)
        partial.replace(target)

    def copy_extensions_to_source(self) -> None:
        """Puts the built extension into the source tree, also by rename."""
        build_py = self.get_finalized_command("build_py")
        for ext in self.extensions:
            inplace_file, regular_file = self._get_inplace_equivalent(build_py, ext)
            partial = Path(inplace_file + ".partial")
            shutil.copy2(regular_file, partial)
            partial.replace(inplace_file)

    def _configure(self, build_folder: Path) -> None:
        generator = [] if not shutil.which("ninja") else ["-G", "Ninja"]
        options = {
            "CMAKE_BUILD_TYPE": os.environ.get("KVTIER_BUILD_TYPE", "RelWithDebInfo"),
            "KVTIER_BUILD_PYTHON": "ON",
            "KVTIER_BUILD_TESTS": "OFF",
            "KVTIER_BUILD_FUZZ": "OFF",
            # Whoever installs from source may have a compiler with warnings unknown here.
            "KVTIER_WERROR": "OFF",
            "Python_EXECUTABLE": sys.executable,
            "pybind11_DIR": pybind11.get_cmake_dir(),
        }
        settings = [f"-D{name}={value}" for name, value in options.items()]
        _run("cmake", "-S", str(ROOT), "-B", str(build_folder), *generator, *settings)


def _run(*command: str) -> None:
    if shutil.which(command[0]) is None:
        raise SystemExit(
            f"{command[0]} is needed to build kvtier: install it, or run tools/setup.sh"
        )
    # Output is held back and shown whole on failure: a build that works says nothing.
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        sys.stderr.write(result.stdout)
        raise SystemExit(f"command failed: {' '.join(command)}")


setup(
    ext_modules=[Extension("kvtier._core", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)

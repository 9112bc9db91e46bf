"""Builds the extension kvtier._core by driving one CMake build, kept between calls so that only
what changed is compiled again, and kvtier.liburing._ring where that build found liburing. Runs in
the build's own process; not meant to be imported.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
BUILD_FOLDER = ROOT / "build" / f"extension-{sysconfig.get_config_var('SOABI')}"
RING_BUILD = runpy.run_path(str(ROOT / "kvtier" / "liburing" / "ring_build.py"))
RING_MODULE: str = RING_BUILD["MODULE_NAME"]


class CMakeBuild(build_ext):
    """Configures and builds the CMake target `_core`, then copies it where setuptools wants it."""

    def run(self) -> None:
        # setuptools clears `inplace` while it builds, so what was asked for is noted here.
        self._is_development = bool(self.inplace) or bool(getattr(self, "editable_mode", False))
        self._configure(BUILD_FOLDER)
        cache = _read_cmake_cache()
        if not self._is_development and not cache.get("KVTIER_CUDA_ARCHS_BUILT"):
            nvcc = cache.get("KVTIER_NVCC", "NOTFOUND")
            reason = "nvcc is not installed" if nvcc.endswith("NOTFOUND") else "none were asked for"
            print(f"note: {reason}: no kernels for GPUs, whose copy engines do all")
        self.extensions = [
            ext for ext in self.extensions if ext.name != RING_MODULE or _add_liburing(ext, cache)
        ]
        super().run()

    def build_extension(self, ext: Extension) -> None:
        if ext.name == RING_MODULE:
            super().build_extension(ext)
            return
        build_folder = BUILD_FOLDER
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
            # A wheel is for any GPU. What is built in place is for this machine's, if it has one.
            "KVTIER_CUDA_ARCHS": os.environ.get(
                "KVTIER_CUDA_ARCHS", "native" if self._is_development else "all"
            ),
            "Python_EXECUTABLE": sys.executable,
            "pybind11_DIR": pybind11.get_cmake_dir(),
        }
        settings = [f"-D{name}={value}" for name, value in options.items()]
        _run("cmake", "-S", str(ROOT), "-B", str(build_folder), *generator, *settings)


def _read_cmake_cache() -> dict[str, str]:
    """What CMake found and decided, by variable."""
    cache = (BUILD_FOLDER / "CMakeCache.txt").read_text(encoding="utf-8", errors="replace")
    return dict(re.findall(r"^(KVTIER_\w+):\w+=(.*)$", cache, re.MULTILINE))


def _add_liburing(ext: Extension, cache: dict[str, str]) -> bool:
    """Completes the ring's extension with the liburing that CMake found; False where it is none."""
    include_dir = cache.get("KVTIER_LIBURING_INCLUDE_DIR", "NOTFOUND")
    library = cache.get("KVTIER_LIBURING_LIBRARY", "NOTFOUND")
    if include_dir.endswith("NOTFOUND") or library.endswith("NOTFOUND"):
        folder = os.environ.get("KVTIER_LIBURING_DIR")
        place = f"below KVTIER_LIBURING_DIR={folder}" if folder else "installed"
        print(f"note: liburing.h and liburing.a are not {place}: no kvtier.liburing, no io_uring")
        return False
    RING_BUILD["write_c_source"](ROOT / ext.sources[0])
    ext.include_dirs.append(include_dir)
    ext.extra_objects.append(library)
    return True


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
    ext_modules=[
        Extension("kvtier._core", sources=[]),
        Extension(
            RING_MODULE,
            # Generated, then linked with liburing.a, whose symbols stay inside.
            sources=["build/liburing/ring_extension.c"],
            depends=["kvtier/liburing/ring.c", "kvtier/liburing/ring_build.py"],
            extra_compile_args=["-O2", "-fvisibility=hidden"],
            extra_link_args=["-Wl,--exclude-libs,ALL"],
        ),
    ],
    cmdclass={"build_ext": CMakeBuild},
)

"""Checks which shared libraries compiled extensions need: those of libc, and no others.

Usage: wheel_libraries.py WHEEL_OR_EXTENSION... Prints a line for each extension; exit 1 when one
needs more, or when there is none. liburing and the C++ runtime are linked statically, and a GPU's
driver is looked for at run time, so that a wheel runs where none of them is installed. Stateless.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_LIBC_FAMILY: Final = re.compile(r"^(?:lib(?:c|m|pthread|dl|rt)\.so\.\d+|ld-linux[\w-]*\.so\.\d+)$")
_NEEDED: Final = re.compile(r"\(NEEDED\)\s+Shared library: \[(?P<name>[^\]]+)\]")
_GLIBC: Final = re.compile(r"Name: GLIBC_(?P<version>\d+(?:\.\d+)+)")


def find_needed(extension: Path) -> list[str]:
    """Returns the shared libraries that the loader looks for."""
    return _NEEDED.findall(_read_elf("--dynamic", extension))


def find_strangers(needed: Sequence[str]) -> list[str]:
    """Returns those that are not libc's."""
    return [name for name in needed if not _LIBC_FAMILY.match(name)]


def find_glibc_version(extension: Path) -> tuple[int, ...]:
    """Returns the newest version of glibc whose symbols are used; () for none."""
    found = _GLIBC.findall(_read_elf("--version-info", extension))
    return max((tuple(map(int, it.split("."))) for it in found), default=())


def _read_elf(option: str, file: Path) -> str:
    command = ["readelf", "--wide", option, str(file)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main(arguments: Sequence[str]) -> int:
    """Checks each file, or each extension in a wheel."""
    num_extensions, num_bad = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments:
            for extension in _list_extensions(Path(name), Path(folder)):
                num_extensions += 1
                needed = find_needed(extension)
                strangers = find_strangers(needed)
                num_bad += bool(strangers)
                version = ".".join(map(str, find_glibc_version(extension)))
                verdict = f"needs {', '.join(strangers)}" if strangers else "libc only"
                print(f"{extension.name}: {verdict} ({', '.join(needed)}; glibc {version})")
    if not num_extensions:
        print("no extension was found")
    return 1 if num_bad or not num_extensions else 0


def _list_extensions(file: Path, folder: Path) -> list[Path]:
    if file.suffix != ".whl":
        return [file]
    with zipfile.ZipFile(file) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".so")]
        return [Path(wheel.extract(name, folder)) for name in sorted(names)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

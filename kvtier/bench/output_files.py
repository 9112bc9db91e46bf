"""Files that a benchmark writes at its end, looked at before minutes of measuring. Stateless."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from kvtier.errors import ConfigError


def check_output_files(*, output: str | None, plot: str | None) -> None:
    """Raises ConfigError for a folder that is not there, and for a picture without matplotlib."""
    for name, file in (("output", output), ("plot", plot)):
        folder = Path(file or ".").resolve().parent
        if not folder.is_dir():
            raise ConfigError(f"{name}: there is no folder {folder}")
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("plot: matplotlib is not installed; pip install 'kvtier[plot]'")

"""Writes docs/configuration.md from what the code knows of its settings.

Usage: make_configuration_doc.py [FILE]. A test compares the committed file with what this makes.
Pure functions but for main; nothing here is shared between threads.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Run as a script, the tool describes the package beside it, installed or not.
sys.path.insert(0, str(ROOT))

from kvtier.config import DEFAULTS, SETTINGS  # noqa: E402
from kvtier.foreign_settings import (  # noqa: E402
    FLAT,
    FOREIGN_SECTIONS,
    FREE_BECOMES,
    FREE_SECTION,
    ForeignSetting,
)
from kvtier.setting_parsers import SettingValue  # noqa: E402
from kvtier.setting_rules import CONTRADICTIONS, DISK_NAMES, USELESS  # noqa: E402
from kvtier.settings import ENVIRONMENT_PREFIX, TOOL_VARIABLES  # noqa: E402
from kvtier.units import format_bytes  # noqa: E402

TARGET = ROOT / "docs/configuration.md"

EDGE_EXAMPLE = """\
storage:
  chunk_size: 128
  local_cpu: true
  max_local_cpu_size: auto        # 20 % of the memory limit
  local_disk: /mnt/nvme/kv        # or file:///mnt/nvme/kv; false: no disk tier
  max_local_disk_size: 500GB
  prefetch_ratio: 0.3             # or 30%
  per_instance_limit: 2GB
compression:
  algorithm: zstd
  level: 3
  chunk_threshold: 1MB
concurrency:
  max_workers: 4
  context_switch_interval: 0.005
"""

INTRODUCTION = """\
# Configuration

<!-- Written by tools/make_configuration_doc.py from the code; change the code and run it again. -->

Nothing has to be configured but the folder of the disk tier. To see what is in effect, where each
value comes from and what is to be known of it:

```
kvtier config                  # without a file
kvtier config FILE             # with this file; --explain adds meanings, --json is for programs
```

It opens nothing and changes nothing. Exit code 2, with all problems at once, when the store would
refuse to open.

## Where settings come from

What stands higher wins:

1. arguments of `kvtier.open(...)`, or `kv_connector_extra_config` under vLLM
2. environment variables `KVTIER_*`; an empty one counts as not set
3. the file, mapping or `kvtier.Config` given as `config`
4. defaults

```python
store = kvtier.open("/mnt/nvme/kv", host_bytes="8GiB", config="kvtier.yaml")
store.config()                 # {name: {"value", "origin"}}, "auto" replaced by bytes
```

Sizes are bytes or have a unit: KiB, MiB, GiB, TiB are powers of 1,024, kB, MB, GB, TB powers of
1,000. A number with a fraction and no unit (`0.5`), a negative size and other units (`5G`) are
errors. `on`, `off`, `yes` and `no` may be written with or without quotes.

A file is YAML in UTF-8, at most 1 MiB, with the names below at its top. A name that is stated
twice, one that is unknown (the nearest known one is suggested) and a value that makes no sense
are errors with their lines.
"""

EXAMPLE_INTRODUCTION = """\
## A file with everything

Every setting with its default. Take away the `# ` before a name to change it.
"""

SETTINGS_INTRODUCTION = """\
## Settings

"Worse" says what gets worse when the value is raised or switched on.

| name and variable | default | range | meaning | worse |
|---|---|---|---|---|
"""

FOREIGN_INTRODUCTION = """\
## Files of other programs

Two kinds of files load as they are; `mapped` in `kvtier config FILE --json` says for each of
their names what became of it, and so does the log when a store is opened. Both may also hold
kvtier's own names, which keep their meaning. A foreign name and the setting that it stands for
may not differ in one file.

Sizes without a unit count in them as in LMCache: `5` and `0.5` are 5 GiB and 512 MiB, although
LMCache calls them GB. `"5GB"` is 5·10⁹ bytes.

The file of an edge box:

"""

FLAT_INTRODUCTION = """\
The YAML file of LMCache's in-process mode has the same names of `storage` without a section, and
those below. Only names that neither kvtier nor LMCache knows are errors.

"""


def make_document() -> str:
    """Returns the text of docs/configuration.md."""
    return "\n".join(
        (
            INTRODUCTION,
            SETTINGS_INTRODUCTION + "\n".join(map(_setting_row, SETTINGS)) + "\n",
            EXAMPLE_INTRODUCTION,
            _fenced(make_example()),
            _rules_text(),
            FOREIGN_INTRODUCTION + _fenced(EDGE_EXAMPLE),
            _foreign_table(_names_in_sections()),
            FLAT_INTRODUCTION + _foreign_table(_flat_names()),
        )
    )


def make_example() -> str:
    """Returns a file in which each setting stands with its default, as a comment."""
    parts = []
    for name, setting in SETTINGS.items():
        value = _yaml_text(DEFAULTS[name], setting.unit)
        parts.append(f"# {setting.meaning}\n#   {setting.range_text}\n# {name}: {value}\n")
    return "\n".join(parts)


def _setting_row(name: str) -> str:
    setting = SETTINGS[name]
    value = _yaml_text(DEFAULTS[name], setting.unit)
    bare = name.upper()
    variable = "" if bare in TOOL_VARIABLES else f"<br>`{ENVIRONMENT_PREFIX}{bare}`"
    default = "none" if DEFAULTS[name] is None else f"`{value}`"
    # Sizes have their unit in the text already; other numbers do not.
    is_bare = isinstance(DEFAULTS[name], (int, float)) and setting.unit not in {"bool", "bytes"}
    unit = f" {setting.unit}" if is_bare else ""
    return _row(
        f"`{name}`{variable}",
        f"{default}{unit}",
        setting.range_text,
        setting.meaning,
        setting.price,
    )


def _rules_text() -> str:
    lines = ["## What does not go together", "", "Errors:", ""]
    lines += [f"- {rule.text}" for rule in CONTRADICTIONS]
    lines += ["", "Warnings, in the log and from `kvtier config`:", ""]
    lines += [f"- {rule.text}" for rule in USELESS]
    lines += [
        f"- without a path these have no effect: {', '.join(f'`{it}`' for it in DISK_NAMES)}",
        "- a path on the system disk, in memory, on a network or on a rotating disk",
        "- swap space, with `vm.swappiness` above 10",
        "",
    ]
    return "\n".join(lines)


def _names_in_sections() -> list[tuple[str, ForeignSetting]]:
    return [
        (f"{section}.{key}", setting)
        for section, settings in FOREIGN_SECTIONS.items()
        if section not in {FLAT, FREE_SECTION}
        for key, setting in settings.items()
    ]


def _flat_names() -> list[tuple[str, ForeignSetting]]:
    storage = FOREIGN_SECTIONS["storage"]
    own = [(key, it) for key, it in FOREIGN_SECTIONS[FLAT].items() if key not in storage]
    free = FOREIGN_SECTIONS[FREE_SECTION]
    in_free = [(f"{FREE_SECTION}.{key}", setting) for key, setting in free.items()]
    others = (f"{FREE_SECTION}.*", ForeignSetting(becomes=FREE_BECOMES))
    return [*own, *in_free, others]


def _foreign_table(names: list[tuple[str, ForeignSetting]]) -> str:
    # Names that come to the same share a row.
    names_by_text: dict[str, list[str]] = {}
    for name, setting in names:
        names_by_text.setdefault(_foreign_text(setting), []).append(f"`{name}`")
    rows = [_row(", ".join(them), text) for text, them in names_by_text.items()]
    return "\n".join(["| name | what becomes of it |", "|---|---|", *rows, ""])


def _foreign_text(setting: ForeignSetting) -> str:
    if not setting.native:
        return setting.becomes
    texts = [f"sets `{setting.native}`"]
    if setting.words is not None:
        pairs = [
            f"{_plain(it)} sets `{setting.native}` = {_plain(to)}"
            for it, to in setting.words.items()
        ]
        texts = [", ".join(pairs)]
    if setting.becomes:
        texts.append(f"else: {setting.becomes}")
    if setting.note:
        texts.append(setting.note)
    return "; ".join(texts)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _yaml_text(value: SettingValue, unit: str) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return _plain(value)
    if unit == "bytes" and isinstance(value, int):
        return format_bytes(value).replace(" ", "")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _row(*cells: str) -> str:
    return f"| {' | '.join(it.replace('|', chr(92) + '|') for it in cells)} |"


def _fenced(text: str) -> str:
    return f"```yaml\n{text}```\n"


def main(arguments: list[str]) -> int:
    """Writes the document to the file named, or to docs/."""
    target = Path(arguments[0]) if arguments else TARGET
    target.write_text(make_document(), encoding="utf-8")
    print(f"wrote {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

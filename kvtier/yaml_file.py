"""A YAML file as values with the lines that they stand in, refusing what YAML would pass over.

Pure functions of the file's bytes; thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvtier.units import MIB, show

if TYPE_CHECKING:
    import yaml

FILE_BYTES_MAX: Final = MIB
# A few anchors that name each other can stand for more values than memory holds.
_NODES_MAX: Final = 10_000
_MAPPING_TAG: Final = "tag:yaml.org,2002:map"
_NULL_TAG: Final = "tag:yaml.org,2002:null"
_BAD_VALUE_ERRORS: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
_MERGE_TAG: Final = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, slots=True)
class Entry:
    """One value that somebody stated, and where. The value of a section is a dict of entries."""

    value: object
    place: str
    """As it stands in messages: "edge.yaml line 3", "KVTIER_IO", "argument", ..."""


def read_yaml_file(path: str, problems: list[str]) -> dict[str, Entry]:
    """Returns the entries of a file by name, those of sections one level deeper likewise.

    What is wrong with the file is appended to `problems`, with line and column.
    """
    import yaml

    text = _read_text(path, problems)
    if text is None:
        return {}
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None or node.tag == _NULL_TAG:
            return {}
        if not isinstance(node, yaml.MappingNode) or node.tag != _MAPPING_TAG:
            problems.append(f"config: {_shown(path)} holds no mapping of names to values")
            return {}
        if _count_nodes(node, {}) > _NODES_MAX:
            problems.append(f"config: {_shown(path)} stands for more than {_NODES_MAX} values")
            return {}
        problems.extend(_find_repeats(node, path, "", set()))
        return _FileReader(loader, path).read_section(node, is_top=True)
    except yaml.reader.ReaderError as error:
        where = _place_at(text, error.position)
        problems.append(f"config: {_shown(path)} {where}: not YAML: a control character")
    except yaml.MarkedYAMLError as error:
        problems.append(f"config: {_shown(path)} {_mark_text(error)}")
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        problems.append(f"config: {_shown(path)} is not YAML: {error}")
    return {}


def _read_text(path: str, problems: list[str]) -> str | None:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        problems.append(f"config: cannot read {_shown(path)}: {error}")
        return None
    if len(data) > FILE_BYTES_MAX:
        problems.append(f"config: {_shown(path)} is larger than {FILE_BYTES_MAX} bytes")
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problems.append(
            f"config: {_shown(path)} line {line} is not YAML: byte {data[error.start]:#04x} is no "
            "UTF-8 text; save the file as UTF-8"
        )
        return None


class _FileReader:
    """Turns nodes into entries; holds what all of them need."""

    def __init__(self, loader: yaml.SafeLoader, path: str) -> None:
        self._loader = loader
        self._path = path

    def read_section(self, node: yaml.MappingNode, *, is_top: bool) -> dict[str, Entry]:
        own: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        for name_node, value_node in node.value:
            if name_node.tag == _MERGE_TAG:
                for source in self._list_merged(value_node):
                    for name, entry in self.read_section(source, is_top=is_top).items():
                        merged.setdefault(name, entry)
                continue
            entry = Entry(self._read_value(value_node, is_top), self._place(name_node))
            own[_name_of(name_node)] = entry
        # What stands there itself wins over what was merged into it.
        return {**merged, **own}

    def _read_value(self, node: yaml.Node, is_top: bool) -> object:
        import yaml

        if is_top and isinstance(node, yaml.MappingNode) and node.tag == _MAPPING_TAG:
            return self.read_section(node, is_top=False)
        if isinstance(node, yaml.ScalarNode) and _is_number_in_disguise(node):
            what = (
                f"{node.value}, which YAML takes for another number (a leading 0 means octal, a "
                "colon base 60); write the number itself, or text in quotes"
            )
            raise yaml.constructor.ConstructorError(None, None, what, node.start_mark)
        try:
            value: object = self._loader.construct_object(node, deep=True)
        except _BAD_VALUE_ERRORS as error:
            # PyYAML raises whatever int(), float() and date() raise, and an IndexError of its own.
            what = f"a value that is no {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, what, node.start_mark) from error
        return value

    def _list_merged(self, node: yaml.Node) -> Iterator[yaml.MappingNode]:
        import yaml

        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "<< takes a mapping, or a list of them", source.start_mark
                )
            yield source

    def _place(self, node: yaml.Node) -> str:
        return f"{_shown(self._path)} line {node.start_mark.line + 1}"


def _is_number_in_disguise(node: yaml.ScalarNode) -> bool:
    is_number = node.style is None and node.tag.endswith((":int", ":float"))
    digits = node.value.lstrip("+-")
    return is_number and (":" in digits or (digits[:1] == "0" and digits[1:2].isdigit()))


def _name_of(node: yaml.Node) -> str:
    import yaml

    if not isinstance(node, yaml.ScalarNode):
        raise yaml.constructor.ConstructorError(
            None, None, "a name is one word, not a list or a mapping", node.start_mark
        )
    return str(node.value)


def _find_repeats(node: yaml.Node, path: str, prefix: str, seen: set[int]) -> Iterator[str]:
    """Yields a sentence for each name that one mapping states twice; YAML would take the last."""
    import yaml

    if id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for child in node.value:
            yield from _find_repeats(child, path, prefix, seen)
        return
    lines: dict[str, list[str]] = {}
    for name_node, value_node in node.value:
        name = f"{prefix}{_name_of(name_node)}"
        lines.setdefault(name, []).append(str(name_node.start_mark.line + 1))
        yield from _find_repeats(value_node, path, f"{name}.", seen)
    for name, found in lines.items():
        if len(found) > 1:
            where = f"{', '.join(found[:-1])} and {found[-1]}"
            yield f"config: {_shown(path)} states {name} more than once: lines {where}"


def _count_nodes(node: yaml.Node, counts: dict[int, int]) -> int:
    """Returns how many nodes there are when every alias is written out."""
    import yaml

    known = counts.get(id(node))
    if known == 0:
        raise yaml.constructor.ConstructorError(None, None, "a value holds itself", node.start_mark)
    if known is None:
        counts[id(node)] = 0
        known = 1 + sum(_count_nodes(child, counts) for child in _children(node))
        counts[id(node)] = known
    return known


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    import yaml

    if isinstance(node, yaml.MappingNode):
        for name_node, value_node in node.value:
            yield name_node
            yield value_node
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _mark_text(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    what = error.problem or error.context or "damaged"
    where = f"line {mark.line + 1} column {mark.column + 1}: " if mark is not None else ""
    hint = "; indent with spaces" if "\\t" in what else ""
    return f"{where}not YAML: {what}{hint}"


def _place_at(text: str, position: int) -> str:
    before = text[:position]
    return f"line {before.count(chr(10)) + 1} column {position - before.rfind(chr(10))}"


def _shown(path: str) -> str:
    return path if path.isprintable() else show(path)


def entries_of(mapping: Mapping[object, object], place: str) -> dict[str, Entry]:
    """Returns the entries of a mapping that a program brings, in the form of a file's."""
    entries = {}
    for name, value in mapping.items():
        section = value if isinstance(value, Mapping) else None
        if section is not None:
            value = {_text(it): Entry(inner, place) for it, inner in section.items()}
        entries[_text(name)] = Entry(value, place)
    return entries


def plain_entry(entry: Entry) -> Entry:
    """Returns the entry with a section turned back into a plain dict."""
    if not isinstance(entry.value, dict):
        return entry
    return Entry({name: inner.value for name, inner in entry.value.items()}, entry.place)


def _text(name: object) -> str:
    return name if isinstance(name, str) else repr(name)

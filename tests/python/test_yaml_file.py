"""YAML files: lines of values, names stated twice, anchors, and files that are none."""

import os
from pathlib import Path

import pytest

import kvtier
from kvtier.yaml_file import Entry, entries_of, plain_entry, read_yaml_file


def read(tmp_path: Path, content: str | bytes) -> tuple[dict[str, Entry], list[str]]:
    file = tmp_path / "kvtier.yaml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    problems: list[str] = []
    entries = read_yaml_file(str(file), problems)
    return entries, [problem.replace(str(tmp_path) + "/", "") for problem in problems]


def plain(entries: dict[str, Entry]) -> dict[str, object]:
    return {name: plain_entry(it).value for name, it in entries.items()}


def test_each_value_has_its_line(tmp_path: Path) -> None:
    entries, problems = read(tmp_path, "# first\nio: uring\n\nstorage:\n  chunk_size: 128\n")
    assert not problems
    assert entries["io"] == Entry("uring", f"{tmp_path}/kvtier.yaml line 2")
    section = entries["storage"].value
    assert isinstance(section, dict)
    assert section["chunk_size"] == Entry(128, f"{tmp_path}/kvtier.yaml line 5")


@pytest.mark.parametrize("content", ["", "# only a comment\n", "---\n", "\n\n", "\ufeff"])
def test_an_empty_file_says_nothing(content: str, tmp_path: Path) -> None:
    assert read(tmp_path, content) == ({}, [])


def test_a_byte_order_mark_and_windows_line_ends_are_no_matter(tmp_path: Path) -> None:
    entries, problems = read(tmp_path, "\ufeffio: uring\r\ndirect: on\r\n")
    assert (plain(entries), problems) == ({"io": "uring", "direct": True}, [])


def test_names_stated_twice_are_named_with_all_their_lines(tmp_path: Path) -> None:
    content = (
        "io: uring\nstorage:\n  local_cpu: yes\n  local_cpu: no\n'io': auto\n"
        "extra_config: {list: [{a: 1, a: 2}]}\nio: threads\n"
    )
    _, problems = read(tmp_path, content)
    assert sorted(problems) == [
        "config: kvtier.yaml states extra_config.list.a more than once: lines 6 and 6",
        "config: kvtier.yaml states io more than once: lines 1, 5 and 7",
        "config: kvtier.yaml states storage.local_cpu more than once: lines 3 and 4",
    ]


def test_the_same_name_in_two_sections_is_no_repeat(tmp_path: Path) -> None:
    assert read(tmp_path, "a: {x: 1}\nb: {x: 1}\n")[1] == []


def test_anchors_stand_for_what_they_name(tmp_path: Path) -> None:
    entries, problems = read(tmp_path, "host_bytes: &size 1GiB\ndisk_bytes: *size\n")
    assert (plain(entries), problems) == ({"host_bytes": "1GiB", "disk_bytes": "1GiB"}, [])
    assert entries["disk_bytes"].place.endswith("line 2")


def test_what_stands_there_wins_over_what_is_merged_in(tmp_path: Path) -> None:
    content = (
        "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\n"
        "c:\n  <<: [*a, *b]\n  x: 3\nd:\n  <<: *b\ne: {inner: {<<: *a}}\n"
    )
    entries, problems = read(tmp_path, content)
    assert not problems
    shown = plain(entries)
    assert shown["c"] == {"x": 3, "y": 1, "z": 2}
    assert shown["d"] == {"y": 2, "z": 2}
    assert shown["e"] == {"inner": {"x": 1, "y": 1}}
    section = entries["c"].value
    assert isinstance(section, dict)
    assert section["z"].place.endswith("line 2")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a: [", "line 1 column 5: not YAML"),
        ("a: 1\n b: 2\n", "line 2 column 3: not YAML"),
        ("storage:\n\tlocal_cpu: true\n", "line 2 column 1: not YAML: .*indent with spaces"),
        ("a: *missing\n", "line 1 column 4: not YAML: found undefined alias"),
        ("a: &a {b: *a}\n", "line 1 column 4: not YAML: a value holds itself"),
        ("a:\n  <<: 5\n", "line 2 column 7: not YAML: << takes a mapping"),
        ("? [a, b]\n: 1\n", "line 1 column 3: not YAML: a name is one word"),
        ("a: 1\n---\nb: 2\n", "line 2 column 1: not YAML: but found another document"),
        ("a: !!python/object:os.system {}\n", "line 1 column 4: not YAML"),
        ("storage: !!python/name:os.system ''\n", "line 1 column 10: not YAML"),
        ("a: 1\nb: \0\n", "line 2 column 4: not YAML: a control character"),
        ("a: !!int abc\n", "line 1 column 4: not YAML: a value that is no int"),
        ("a: !!int\n", "line 1 column 4: not YAML: a value that is no int"),
        ("a: 2020-99-99\n", "line 1 column 4: not YAML: a value that is no timestamp"),
        ("- a\n- b\n", "no mapping"),
        ("just text", "no mapping"),
        ("!!set {a}", "no mapping"),
        (b"a: 1\nb: \xff\n", "line 2 is not YAML: byte 0xff is no UTF-8"),
        (b"\x7fELF\x02\x01\x01\0\0", "not YAML"),
        ("a: 1\n".encode("utf-16"), "save the file as UTF-8"),
        ("[" * 5000, "YAML"),
    ],
)
def test_what_is_not_yaml_is_refused_with_its_place(
    content: str | bytes, problem: str, tmp_path: Path
) -> None:
    entries, problems = read(tmp_path, content)
    assert entries == {}
    assert len(problems) == 1
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(problems[0])


def test_anchors_that_stand_for_millions_of_values_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    entries, problems = read(tmp_path, "\n".join(lines))
    assert entries == {}
    assert problems == ["config: kvtier.yaml stands for more than 10000 values"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    file = tmp_path / "file"
    file.write_text("")
    for path in (tmp_path, tmp_path / "missing", loop, file / "below", "a\0b"):
        problems: list[str] = []
        assert read_yaml_file(str(path), problems) == {}
        assert len(problems) == 1
        assert "cannot read" in problems[0]
    _, problems = read(tmp_path, "#" * (1 << 20))
    assert problems == []
    _, problems = read(tmp_path, "#" * ((1 << 20) + 1))
    assert problems == ["config: kvtier.yaml is larger than 1048576 bytes"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    file = tmp_path / "kvtier.yaml"
    file.write_text("io: auto")
    file.chmod(0)
    problems: list[str] = []
    assert read_yaml_file(str(file), problems) == {}
    assert "Permission denied" in problems[0]


def test_a_path_with_line_ends_stays_on_one_line(tmp_path: Path) -> None:
    problems: list[str] = []
    read_yaml_file(str(tmp_path / "a\nb"), problems)
    assert "\n" not in problems[0]


def test_a_mapping_of_a_program_reads_like_a_file() -> None:
    entries = entries_of({"io": "uring", 1: 2, "storage": {"chunk_size": 128}}, "config")
    assert plain(entries) == {"io": "uring", "1": 2, "storage": {"chunk_size": 128}}
    assert entries["io"].place == "config"


@pytest.mark.parametrize("value", ["010", "1:30", "-017", "1:30.5"])
def test_numbers_that_yaml_takes_for_others_are_refused(tmp_path: Path, value: str) -> None:
    file = tmp_path / "kvtier.yaml"
    file.write_text(f"io: auto\nstall_s: {value}\n")
    with pytest.raises(kvtier.ConfigError, match="takes for another number") as caught:
        kvtier.open(config=file)
    assert "line 2" in str(caught.value)
    assert value in str(caught.value)

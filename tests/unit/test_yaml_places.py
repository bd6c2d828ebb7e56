from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_dl.model.errors import ConfigError
from slurm_dl.yaml_places import LARGEST_BYTES, dotted, parse, read_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("no", "no"),
        ("y", "y"),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("010", 10),
        ("-7", -7),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("2026-99-99", "2026-99-99"),
        ("1e7", 1e7),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        (".nan", pytest.approx(float("nan"), nan_ok=True)),
        ("9" * 5000, float("inf")),
        ("'5'", "5"),
        ('"\\u00e9"', "é"),
        ("[1, [a, 2.5]]", [1, ["a", 2.5]]),
        ("{a: {b: 1}}", {"a": {"b": 1}}),
        ("<<: 1", {"<<": 1}),
        ("=", "="),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    """What an admin writes is read by YAML 1.2's rules: no octals, dates or words for booleans."""
    assert parse(text, "f.yaml").value == value


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("a: 1\n\tb: 2", 2, "tab"),
        ("a: 1\nb: c: d", 2, "YAML"),
        ("a: [1, 2\n", 2, "YAML"),
        ("a: 1\n---\nb: 2", 2, "document"),
        ("a: &x 1\nb: *x", 1, "anchors"),
        ("a: 1\nb: *x", 2, "anchors"),
        ("\na: !!python/name:os.system x", 2, "tags (tag:yaml.org,2002:python/name:os.system)"),
        ("a: !x 1", 1, "tags (!x)"),
        ("a: 1\nb: \x07", 2, "U+0007"),
        ('a: 1\nb: "\\UFFFFFFFF"', 2, "YAML"),
        ('a: 1\nb: "\\q"', 2, "'q'"),
        ("[" * 5_000, 1, "nested"),
        ("- " * 20 + "a", 1, "nested"),
        (f"%YAML 1.{'1' * 5000}\n---\na: 1", 1, "YAML"),
    ],
)
def test_syntax_error_is_one_line_with_its_place(text: str, line: int, word: str) -> None:
    """Text that cannot be read gives one line that names file and line and says what is wrong."""
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.yaml")
    error = str(caught.value)

    assert error.startswith(f"f.yaml:{line}: ")
    assert word in error
    assert len(error.splitlines()) == 1


def test_every_key_and_item_has_its_line() -> None:
    """Places are those of keys and of list items, from which error lines are taken."""
    places = parse("a:\n  b: 1\n\nc:\n  - x\n  - d: 2\n", "f.yaml").places

    assert {loc: str(place) for loc, place in places.items()} == {
        ("a",): "f.yaml:1",
        ("a", "b"): "f.yaml:2",
        ("c",): "f.yaml:4",
        ("c", 0): "f.yaml:5",
        ("c", 1): "f.yaml:6",
        ("c", 1, "d"): "f.yaml:6",
    }


def test_duplicate_and_nameless_keys_are_all_found() -> None:
    """A key given twice is never resolved in silence; keys that are no names are refused."""
    document = parse("a: 1\nb: {c: 1, c: 2}\na: 3\n7: x\n? [p, q]\n: y\n~: z\n", "f.yaml")

    assert [str(problem) for problem in document.problems] == [
        "f.yaml:2: b.c: is given twice (first in line 2)",
        "f.yaml:3: a: is given twice (first in line 1)",
        "f.yaml:4: a key must be a name (got 7)",
        "f.yaml:5: a key must be a name (got a list)",
        "f.yaml:7: a key must be a name (got None)",
    ]
    assert document.value == {"a": 1, "b": {"c": 1}}


def test_key_cannot_forge_a_line_of_the_report() -> None:
    """Line breaks, terminal codes and lone surrogates of a key are written out."""
    document = parse(
        '"a\\nf.yaml:9: x\\e[1m\\uD800": 1\n"a\\nf.yaml:9: x\\e[1m\\uD800": 2', "f.yaml"
    )

    assert [str(problem) for problem in document.problems] == [
        r"f.yaml:2: 'a\nf.yaml:9: x\x1b[1m\ud800': is given twice (first in line 1)"
    ]


def test_odd_keys_are_quoted_and_cut() -> None:
    """A key that could be taken for something else is shown in quotes, a long one in part."""
    assert dotted(("daemon", "poll_s")) == "daemon.poll_s"
    assert dotted(("a.b", 0, " ", "")) == "'a.b'.0.' '.''"
    assert dotted(("x" * 61,)) == "'" + "x" * 58 + "…"


def refusal(path: Path, *, require_private: bool = False) -> str:
    with pytest.raises(ConfigError) as caught:
        read_text(path, "daemon" if require_private else None)
    return str(caught.value)


def test_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    """Missing, directory, FIFO, oversized, binary and impossible names: one line each, no wait."""
    fifo, large, binary = tmp_path / "fifo", tmp_path / "large", tmp_path / "binary"
    os.mkfifo(fifo)
    large.write_bytes(b"#" * (LARGEST_BYTES + 1))
    binary.write_bytes(b"a: 1\nb: \xff\n")

    for path, place, word in (
        (tmp_path / "none", f"{tmp_path}/none", "no such file"),
        (tmp_path, str(tmp_path), "regular"),
        (fifo, str(fifo), "regular"),
        (large, str(large), "256 KiB"),
        (binary, f"{binary}:2", "0xff"),
        (Path("a\0b"), r"a\x00b", "null"),
        (large / "x", f"{large}/x", "directory"),
    ):
        found = refusal(path)
        assert found.startswith(f"{place}: ")
        assert word in found


def test_largest_file_and_byte_order_mark_are_read(tmp_path: Path) -> None:
    """The limit itself is allowed, and an editor's byte order mark is not part of the text."""
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + b"#" * (LARGEST_BYTES - 3))

    assert read_text(path) == "#" * (LARGEST_BYTES - 3)


def test_private_file_is_one_that_nobody_else_could_write(tmp_path: Path) -> None:
    """For the daemon, mode and owner of the file decide whether it is believed."""
    path = tmp_path / "f.yaml"
    path.write_text("a: 1\n")

    for mode in (0o600, 0o644, 0o444):
        path.chmod(mode)
        assert read_text(path, "daemon") == "a: 1\n"
    for mode in (0o664, 0o646, 0o620):
        path.chmod(mode)
        assert f"chmod go-w {path}" in refusal(path, require_private=True)
        assert read_text(path) == "a: 1\n"


def test_private_file_belongs_to_root_or_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of another user is refused even if only that user can write it."""
    path = tmp_path / "f.yaml"
    path.write_text("a: 1\n")
    path.chmod(0o600)
    real = os.fstat

    def owned_by_4242(fd: int) -> os.stat_result:
        return os.stat_result([*real(fd)[:4], 4242, *real(fd)[5:]])

    monkeypatch.setattr(os, "fstat", owned_by_4242)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert f"chown root {path}" in refusal(path, require_private=True)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert read_text(path, "daemon") == "a: 1\n"

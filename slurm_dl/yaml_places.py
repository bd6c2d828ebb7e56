"""Parse YAML and keep the place of every key: for the configuration and for models' profiles.

Mappings, lists and scalars as YAML 1.2 reads them (``on`` and ``no`` are text, 0666 is 666, 1e7 is
a number). Tags, anchors and second documents are refused, and so is text that is nested so deeply
that it could exhaust the stack. So a file's size bounds what it becomes in memory.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import yaml

from slurm_dl.files import why_not_trusted
from slurm_dl.model.errors import ConfigError
from slurm_dl.text import escaped, shown

Loc = tuple[str | int, ...]
Reader = Literal["daemon", "user"]

LARGEST_BYTES = 256 * 1024
_DEEPEST = 16
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """Where something was written."""

    line: int  # Line in the file; 0 for the file as a whole and for flags
    name: str  # The file, or the whole flag
    flag: int = 0  # Which of the flags it was, from 1; 0: it was the file

    def __str__(self) -> str:
        return f"{self.name}:{self.line}" if self.line else self.name


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, with its place. Printed, it is one line."""

    place: SourcePlace
    key: str
    text: str

    def __str__(self) -> str:
        parts = (str(self.place), self.key, self.text)
        return escaped(": ".join(part for part in parts if part), 2000)


@dataclass(slots=True)
class Document:
    """What was written, where, and what is wrong with it so far.

    Attributes:
        places: Place of each key and list item, by its path from the root.
        problems: Mistakes that did not keep the rest from being read.
    """

    value: object = None  # The plain value: None for an empty text
    places: dict[Loc, SourcePlace] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def dotted(loc: Loc) -> str:
    """A path as people write it: ``daemon.poll_s``, ``manage.partitions.0``; odd keys in quotes."""
    return ".".join(
        part if re.fullmatch(r"[\w-]{1,60}", part) else shown(part) for part in map(str, loc)
    )


def read_text(path: Path, reader: Reader | None = None) -> str:
    """The text of *path*.

    Args:
        reader: Who relies on it; see `check_trust`. None: no one yet.

    Raises:
        ConfigError: It cannot be read, or is not to be trusted; one line.
    """
    name = str(path)
    try:
        # A FIFO in its place must not keep us waiting.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise _whole(name, "no such file") from None
    except (OSError, ValueError) as err:
        reason = err.strerror if isinstance(err, OSError) else str(err)
        raise _whole(name, f"cannot be read: {reason}") from None
    try:
        # Of the open file, not of the name: it cannot be swapped in between.
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _whole(name, "is not a regular file")
        if reader is not None:
            check_trust(path, status, reader)
        with os.fdopen(fd, "rb", closefd=False) as file:
            content = file.read(LARGEST_BYTES + 1)
    finally:
        os.close(fd)
    if len(content) > LARGEST_BYTES:
        raise _whole(name, f"is larger than {LARGEST_BYTES // 1024} KiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        line = content.count(b"\n", 0, err.start) + 1
        problem = Problem(
            SourcePlace(line, name), "", f"is not UTF-8 text (byte 0x{content[err.start]:02x})"
        )
        raise ConfigError(str(problem)) from None


def parse(text: str, name: str, *, flag: int = 0, texts: bool = False) -> Document:
    """Read *text*; *name* is its file, or the flag it was given with.

    Args:
        texts: Scalars other than true and false stay the text that was written.

    Raises:
        ConfigError: It is not YAML that can be used; one line.
    """
    reading = _Reading(name, flag=flag, texts=texts)
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
    except yaml.reader.ReaderError as err:
        line = text.count("\n", 0, err.position) + 1
        raise reading.failed(
            line, f"character U+{ord(text[err.position]):04X} is not allowed"
        ) from None
    except _Refused as err:
        raise reading.failed(err.line, str(err)) from None
    except yaml.MarkedYAMLError as err:
        line = err.problem_mark.line + 1 if err.problem_mark else 0
        raise reading.failed(line, _syntax(err)) from None
    except (ValueError, OverflowError) as err:
        # PyYAML lets these through for escapes and version numbers out of range.
        line = loader.line + 1 if loader else 0
        raise reading.failed(line, f"is not valid YAML: {err}") from None
    if root is not None:
        reading.document.value = reading.value(root, ())
    return reading.document


class _Refused(Exception):  # noqa: N818 - never leaves this module
    """Valid YAML that has no business in a configuration."""

    def __init__(self, text: str, line: int) -> None:
        super().__init__(text)
        self.line = line


class _Loader(yaml.SafeLoader):
    """A safe loader with the scalars of YAML 1.2, and less than all of its syntax."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own name

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.NodeEvent = self.peek_event()  # type: ignore[no-untyped-call]
        tag: str | None = getattr(event, "tag", None)
        refused = ""
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            refused = "anchors and aliases (& and *) are not used here"
        elif tag is not None:
            refused = f"tags ({tag}) are not used here"
        elif self._depth >= _DEEPEST:
            refused = f"is nested more than {_DEEPEST} levels deep"
        if refused:
            raise _Refused(refused, event.start_mark.line + 1 if event.start_mark else 0)
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


for _kind, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    # Python refuses to read very long whole numbers; here they become inexact, and out of bounds.
    ("int", r"[-+]?[0-9]{1,18}", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(rf"(?:{_pattern})\Z"), _first)


class _Dumper(yaml.SafeDumper):
    """Quotes a text that `_Loader` would read as something else."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def dump(value: object) -> str:
    """*value* as YAML that `parse` reads back as it is."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=98)
    return text


def _syntax(err: yaml.MarkedYAMLError) -> str:
    problem = err.problem or ""
    if r"'\t'" in problem:
        return "a tab stands here; YAML wants spaces"
    if "another document" in problem:
        return "a second document begins here ('---'); there can be one"
    return f"is not valid YAML: {problem}"


class _Reading:
    """One text on its way from YAML nodes to a `Document`."""

    def __init__(self, name: str, *, flag: int, texts: bool = False) -> None:
        self.document = Document()
        self._texts = texts
        self._name = name
        self._flag = flag

    def value(self, node: yaml.Node, loc: Loc) -> object:
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, loc)
        if isinstance(node, yaml.SequenceNode):
            items = []
            for i, item in enumerate(node.value):
                self.document.places[*loc, i] = self._place(item)
                items.append(self.value(item, (*loc, i)))
            return items
        kind = node.tag.removeprefix(_TAG)
        return _scalar("str" if self._texts and kind != "bool" else kind, node.value)

    def failed(self, line: int, text: str) -> ConfigError:
        place = SourcePlace(0 if self._flag else line, self._name, self._flag)
        return ConfigError(str(Problem(place, "", text)))

    def _mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, object]:
        values: dict[str, object] = {}
        for key_node, value_node in node.value:
            place = self._place(key_node)
            # Of a key that is itself a mapping, nothing is kept.
            key = _Reading(self._name, flag=self._flag).value(key_node, ())
            if not isinstance(key, str):
                self._problem(place, loc, f"a key must be a name (got {shown(key)})")
            elif key in values:
                first = self.document.places[*loc, key].line
                where = f" (first in line {first})" if first else ""
                self._problem(place, (*loc, key), f"is given twice{where}")
            else:
                self.document.places[*loc, key] = place
                values[key] = self.value(value_node, (*loc, key))
        return values

    def _problem(self, place: SourcePlace, loc: Loc, text: str) -> None:
        self.document.problems.append(Problem(place, dotted(loc), text))

    def _place(self, node: yaml.Node) -> SourcePlace:
        line = 0 if self._flag else node.start_mark.line + 1
        return SourcePlace(line, self._name, self._flag)


def _scalar(kind: str, text: str) -> object:
    match kind:
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int":
            return int(text)
        case "float":
            # Python spells YAML's .inf and .nan without the dot.
            return float(re.sub(r"\.(?=[iInN])", "", text))
        case _:
            return text


def _whole(name: str, text: str) -> ConfigError:
    return ConfigError(str(Problem(SourcePlace(0, name), "", text)))


def check_trust(path: Path, status: os.stat_result, reader: Reader) -> None:
    """Refuse a file or directory that others can write.

    Args:
        reader: ``user``: it must not be writable by its group or others. ``daemon``: moreover it
            and the directories above it must be root's or this account's.

    Raises:
        ConfigError: It says what to do.
    """
    name = str(path)
    mode = stat.S_IMODE(status.st_mode)
    if reader == "daemon" and status.st_uid not in {0, os.geteuid()}:
        text = f"belongs to uid {status.st_uid}; it must belong to root (chown root {name})"
        raise _whole(name, text)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        text = f"can be written by group or others (mode {mode:04o}); do: chmod go-w {name}"
        raise _whole(name, text)
    if reader == "daemon":
        try:
            why = why_not_trusted(path, {os.geteuid()})
        except OSError as err:
            why = f"{err.filename}: {err.strerror}"
        if why:
            raise _whole(name, why)

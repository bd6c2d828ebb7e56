"""A YAML text as a plain mapping, and the line of each key in it.

It knows less than all of YAML: no anchors, no tags, one document, no deep nesting. So a file's
size bounds what it becomes in memory.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from slurm_dl.model.errors import ConfigError

Loc = tuple[str | int, ...]
Reader = Literal["daemon", "user"]
"""Who reads: the daemon believes only files of root and of its own user."""

LARGEST_BYTES = 256 * 1024
_DEEPEST = 6
_SHOWN = 60
_TEXT_TAG = "tag:yaml.org,2002:str"

# libyaml's parser takes a tenth of the time, where PyYAML was built with it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class ProfileDocument(NamedTuple):
    """What a text says.

    Attributes:
        value: Plain mappings, lists and scalars.
        lines: Line of each key and list item, by its path from the root.
        mistakes: Lines of an error message, for what did not keep the rest from being read.
    """

    value: object
    lines: dict[Loc, int]
    mistakes: list[str]


def read_text(path: Path, reader: Reader | None) -> str:
    """The text of *path*.

    Args:
        reader: Who must be able to trust it; None: nobody relies on it yet.

    Raises:
        ConfigError: It cannot be read, or others could have written it; one line.
    """
    try:
        # A FIFO in its place must not keep us waiting.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as err:
        reason = err.strerror if isinstance(err, OSError) else str(err)
        msg = f"{printable(path)}: cannot be read: {reason}"
        raise ConfigError(msg) from None
    with os.fdopen(descriptor, "rb") as file:
        # Of the open file, not of the name: it cannot be swapped in between.
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            msg = f"{printable(path)}: is not a regular file"
            raise ConfigError(msg)
        if reader is not None:
            check_trust(path, status, reader)
        content = file.read(LARGEST_BYTES + 1)
    if len(content) > LARGEST_BYTES:
        msg = f"{printable(path)}: is larger than {LARGEST_BYTES // 1024} KiB"
        raise ConfigError(msg)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        line = content.count(b"\n", 0, err.start) + 1
        msg = f"{printable(path)}:{line}: is not UTF-8 text (byte 0x{content[err.start]:02x})"
        raise ConfigError(msg) from None


def check_trust(path: Path, status: os.stat_result, reader: Reader) -> None:
    """Refuse a file or directory that others than root and the daemon's user can write.

    Raises:
        ConfigError: It says what to do.
    """
    name, mode = printable(path), stat.S_IMODE(status.st_mode)
    if reader == "daemon" and status.st_uid not in {0, os.geteuid()}:
        msg = f"{name}: belongs to uid {status.st_uid}; it must be root's: chown root {name}"
        raise ConfigError(msg)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        msg = f"{name}: can be written by group or others (mode {mode:04o}): chmod go-w {name}"
        raise ConfigError(msg)


def parse(text: str, name: str) -> ProfileDocument:
    """Read *text*, which stands in the file *name*.

    Raises:
        ConfigError: It is not YAML that can be used; one line.
    """
    name = printable(name)
    try:
        _refuse_more_than_data(text, name)
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            document = ProfileDocument(None, {}, [])
            if root is not None:
                _walk(root, (), document, name)
                if not document.mistakes:
                    document = document._replace(value=loader.construct_document(root))
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as err:
        line = err.problem_mark.line + 1 if err.problem_mark else 1
        msg = f"{name}:{line}: is not valid YAML: {printable(err.problem or '')}"
        raise ConfigError(msg) from None
    except (yaml.YAMLError, ValueError, OverflowError) as err:
        msg = f"{name}: is not valid YAML: {printable(str(err))}"
        raise ConfigError(msg) from None
    return document


def _refuse_more_than_data(text: str, name: str) -> None:
    depth = documents = 0
    for event in yaml.parse(text, Loader=_Loader):
        refused = ""
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                refused = "a second document begins here ('---'); there can be one"
        elif isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST:
                refused = f"is nested more than {_DEEPEST} levels deep"
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            refused = "anchors and aliases (& and *) are not used here"
        elif isinstance(event, yaml.NodeEvent) and getattr(event, "tag", None) is not None:
            refused = "tags (!) are not used here"
        if refused:
            mark = event.start_mark
            msg = f"{name}:{mark.line + 1 if mark else 1}: {refused}"
            raise ConfigError(msg)


def _walk(node: yaml.Node, loc: Loc, document: ProfileDocument, name: str) -> None:
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            document.lines[*loc, i] = item.start_mark.line + 1
            _walk(item, (*loc, i), document, name)
        return
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or key.tag != _TEXT_TAG:
            document.mistakes.append(f"{name}:{line}: {dotted(loc)}a key must be a name")
        elif (*loc, key.value) in document.lines:
            first = document.lines[*loc, key.value]
            text = f"is given twice (first in line {first})"
            document.mistakes.append(f"{name}:{line}: {dotted((*loc, key.value))}{text}")
        else:
            document.lines[*loc, key.value] = line
            _walk(value, (*loc, key.value), document, name)


def dotted(loc: Loc) -> str:
    """A path as people write it, with a colon: ``load.gpu_util: ``; nothing for the root."""
    return ".".join(printable(part) for part in loc) + ": " if loc else ""


def printable(text: object) -> str:
    r"""*text* on one line and not for ever: control characters as ``\n``."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "replace").decode("ascii")
        for c in str(text)[:1000]
    )


def shown(value: object) -> str:
    """A value for a message, cut short."""
    text = "a list" if isinstance(value, list) else repr(value)
    if isinstance(value, dict):
        text = "a mapping"
    return printable(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")

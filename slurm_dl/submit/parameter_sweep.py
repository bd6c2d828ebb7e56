"""Sweeps: one array, a task for each combination of the values that stand in ``--sweep``.

The script sets a variable for each swept name, in a ``case`` of the task, and ``{name}`` in a word
of the command becomes that variable. So values are data to the shell, and nothing runs on the node.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_dl.job.run_files import read_regular
from slurm_dl.model.errors import ConfigError
from slurm_dl.submit.shell_quoting import ShellText, word
from slurm_dl.text import shown

MOST_TASKS = 10_000
_VARIABLE = "SLURM_DL_SWEEP_"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_RANGE = re.compile(r"(-?\d{1,17})\.\.(-?\d{1,17})(?:\.\.([1-9]\d{0,16}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Names, the values of each task, and the words in which names are replaced."""

    names: tuple[str, ...]
    tasks: tuple[tuple[str, ...], ...]
    words: tuple[str, ...] = ()

    def array(self, typed: str | None) -> str:
        """The ``--array`` of it; *typed* may only limit how many tasks run at a time, as ``%4``.

        Raises:
            ConfigError: It says more.
        """
        if typed is not None and not re.fullmatch(r"%[1-9]\d{0,5}", typed, re.ASCII):
            msg = f"--array: {shown(typed)} cannot go with --sweep, which makes the array; %4 can"
            raise ConfigError(msg)
        return f"0-{len(self.tasks) - 1}{typed or ''}"

    def replaced(self, task: int) -> tuple[str, ...]:
        """The words of that task."""
        values = dict(zip(self.names, self.tasks[task], strict=True))
        return tuple(self._replace(text, values.__getitem__, str) for text in self.words)

    def quoted(self) -> tuple[ShellText, ...]:
        """The words for the script, with a variable in place of each ``{name}``."""

        def variable(name: str) -> str:
            # Submitted by hand, outside an array: better no run than one without its values.
            return f'"${{{_VARIABLE}{name.upper()}?}}"'

        def other(text: str) -> str:
            return text and word(text)

        return tuple(ShellText(self._replace(w, variable, other) or "''") for w in self.words)

    def _replace(self, text: str, swept: Callable[[str], str], other: Callable[[str], str]) -> str:
        parts = re.split(rf"\{{({'|'.join(self.names)})\}}", text)
        return "".join(swept(part) if i % 2 else other(part) for i, part in enumerate(parts))

    def case(self) -> ShellText:
        """The statement that exports the values of the task."""
        lines = []
        for task, values in enumerate(self.tasks):
            pairs = zip(self.names, values, strict=True)
            sets = " ".join(f"{_VARIABLE}{name.upper()}={word(value)}" for name, value in pairs)
            lines.append(f"{task}) export {sets} ;;\n")
        return ShellText(f'case "$SLURM_ARRAY_TASK_ID" in\n{"".join(lines)}esac')


def parse(typed: Sequence[str], most: int, words: Sequence[str], script: str = "") -> Sweep:
    r"""Read ``name=a,b``, with ``\,`` for a comma in a value, and ``A..B`` or ``A..B..STEP``.

    Args:
        most: Tasks that an array of this cluster may have.
        words: Of the command, or the arguments of *script*.

    Raises:
        ConfigError: One is wrong or not used, or there are too many combinations.
    """
    ranges: dict[str, list[Sequence[object]]] = {}
    for text in typed:
        name, _, values = text.partition("=")
        if not _NAME.fullmatch(name) or name.upper() in map(str.upper, ranges):
            msg = f"--sweep: {shown(text)} is not NAME=VALUE,... or NAME=FIRST..LAST of a new name"
            raise ConfigError(msg)
        if f"{{{name}}}" not in " ".join(words):
            _check_read(name, script, words)
        ranges[name] = [_values(name, item) for item in re.split(r"(?<!\\),", values)]
    count, most = math.prod(sum(map(len, i)) for i in ranges.values()), min(most, MOST_TASKS)
    if count > most:
        msg = f"--sweep: {count:,} combinations; an array may have {most:,} tasks here"
        raise ConfigError(msg)
    lists = ([str(v) for items in parts for v in items] for parts in ranges.values())
    return Sweep(tuple(ranges), tuple(itertools.product(*lists)), tuple(words))


def _values(name: str, item: str) -> Sequence[object]:
    match = _RANGE.fullmatch(item)
    values = range(int(match[1]), int(match[2]) + 1, int(match[3] or 1)) if match else ()
    if not item or (match and not values):
        msg = f"--sweep {name}: {shown(item)} is no value; a range is FIRST..LAST or with ..STEP"
        raise ConfigError(msg)
    return values or (item.replace(r"\,", ","),)


def _check_read(name: str, script: str, words: Sequence[str]) -> None:
    """Refuse a name whose variable is nowhere in *script*, *words* and the files that they name."""
    variable = f"{_VARIABLE}{name.upper()}"
    if any(variable in text for text in (script, *words, *map(_content, words))):
        return
    msg = f"--sweep {name}: {{{name}}} is nowhere in the command, and nothing reads {variable}"
    raise ConfigError(msg)


def _content(path: str) -> str:
    try:
        return read_regular(Path(path)).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""

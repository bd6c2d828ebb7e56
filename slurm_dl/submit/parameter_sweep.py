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

from slurm_dl.job.untrusted_files import read_regular
from slurm_dl.model.errors import ConfigError
from slurm_dl.submit.shell_quoting import ShellText, word
from slurm_dl.text import shown

MOST_TASKS = 10_000
_VARIABLE = "SLURM_DL_SWEEP_"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.(\d{1,18}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Names, and the values of each task: all combinations, those of the last name fastest."""

    names: tuple[str, ...]
    tasks: tuple[tuple[str, ...], ...]

    def array(self, typed: str | None) -> str:
        """The ``--array`` of it; *typed* may only limit how many tasks run at a time, as ``%4``.

        Raises:
            ConfigError: It says more.
        """
        if typed is not None and not re.fullmatch(r"%[1-9]\d{0,5}", typed, re.ASCII):
            msg = f"--array: {shown(typed)} cannot go with --sweep, which makes the array; %4 can"
            raise ConfigError(msg)
        return f"0-{len(self.tasks) - 1}{typed or ''}"

    def replaced(self, words: Sequence[str], task: int) -> tuple[str, ...]:
        """*words* as that task has them."""
        values = dict(zip(self.names, self.tasks[task], strict=True))
        return tuple(self._replace(text, lambda name: values[name], str) for text in words)

    def quoted(self, words: Sequence[str]) -> tuple[ShellText, ...]:
        """*words* for the script, with a variable in place of each ``{name}``."""

        def variable(name: str) -> str:
            # A template without the header sets none: better no run than one without its values.
            return f'"${{{_VARIABLE}{name.upper()}?}}"'

        return tuple(
            ShellText(self._replace(text, variable, lambda rest: rest and word(rest)) or "''")
            for text in words
        )

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

    def check_used(self, words: Sequence[str], script: str = "") -> None:
        """Refuse a name that neither *words*, files among them, nor *script* use.

        Raises:
            ConfigError: There is one.
        """
        told = " ".join(words)
        unused = [name for name in self.names if f"{{{name}}}" not in told]
        text = script + told + "".join(map(_content, words)) if unused else ""
        for name in unused:
            if f"{_VARIABLE}{name.upper()}" not in text:
                msg = (
                    f"--sweep {name}: {{{name}}} stands nowhere in the command, and nothing there"
                    f" reads {_VARIABLE}{name.upper()}"
                )
                raise ConfigError(msg)


def _content(path: str) -> str:
    try:
        return read_regular(Path(path)).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def parse(typed: Sequence[str], most: int) -> Sweep:
    r"""Read ``name=a,b``, with ``\,`` for a comma in a value, and ``A..B`` or ``A..B..STEP``.

    Args:
        most: Tasks that an array of this cluster may have.

    Raises:
        ConfigError: One is wrong, or there are too many combinations.
    """
    ranges: dict[str, list[Sequence[object]]] = {}
    for text in typed:
        name, equals, values = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            msg = f"--sweep: {shown(text)} is not NAME=VALUE,VALUE or NAME=FIRST..LAST"
            raise ConfigError(msg)
        if name.upper() in (other.upper() for other in ranges):
            msg = f"--sweep {name}: the name is given twice"
            raise ConfigError(msg)
        items = (item.replace(r"\,", ",") for item in re.split(r"(?<!\\),", values))
        ranges[name] = [_values(name, item) for item in items]
    count = math.prod(sum(map(len, items)) for items in ranges.values())
    if count > min(most, MOST_TASKS):
        msg = f"--sweep: {count:,} combinations; an array may have {min(most, MOST_TASKS):,} here"
        raise ConfigError(msg)
    lists = ([str(v) for items in parts for v in items] for parts in ranges.values())
    return Sweep(tuple(ranges), tuple(itertools.product(*lists)))


def _values(name: str, item: str) -> Sequence[object]:
    match = _RANGE.fullmatch(item)
    step = int(match[3] or 1) if match else 1
    values = range(int(match[1]), int(match[2]) + 1, step) if match and step else (item,)
    if not item or "\0" in item or not values or not step:
        msg = f"--sweep {name}: {shown(item)} is no value; a range is FIRST..LAST or with ..STEP"
        raise ConfigError(msg)
    return values

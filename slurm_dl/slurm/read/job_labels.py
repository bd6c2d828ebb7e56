"""Names of jobs as Slurm writes them: ``4711``, ``4711_3``, ``4711_[0-8:2]``, ``4711+1``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_LABEL = re.compile(
    r"([0-9]{1,18})(?:_([0-9]{1,18})|_\[([0-9,:-]+)(?:%[0-9]{1,18})?\]|\+([0-9]{1,18}))?"
)
_SPAN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
_MOST_TASKS = 4_000_001


def _array_ranges(spec: str) -> list[range]:
    """The tasks of an array spec such as ``1-3,10-100:5``; ValueError if it is no such spec."""
    ranges = []
    for part in spec.split(","):
        span = _SPAN.fullmatch(part)
        if span is None:
            msg = f"{part[:40]!r} is no part of an array spec"
            raise ValueError(msg)
        first, last, step = span.groups()
        ranges.append(range(int(first), int(last or first) + 1, int(step or 1)))
    return ranges


def tasks_in(label: str) -> int:
    """Number of jobs in the record *label*; ValueError if it is no job label."""
    spec = _match_label(label)[3]
    tasks = 1 if spec is None else sum(map(len, _array_ranges(spec)))
    if not 0 < tasks <= _MOST_TASKS:
        msg = f"{label[:40]!r} stands for {tasks} tasks"
        raise ValueError(msg)
    return tasks


def tasks_as_one(labels: Sequence[str]) -> str | None:
    """One label for several different tasks of one array, ``6_[0-8:2]``; None if they are none."""
    found = [_LABEL.fullmatch(label) for label in labels]
    tasks = sorted({int(match[2]) for match in found if match and match[2]})
    if len(tasks) < len(labels) or len({match[1] for match in found if match}) != 1:
        return None
    if len(labels) == 1:
        return labels[0]
    return f"{labels[0].partition('_')[0]}_[{_spec(tasks)}]"


def one_spelling(label: str) -> str:
    """*label* as `tasks_as_one` spells it, however Slurm does; ValueError if it is no job label.

    ``6_[0,2,4%9]`` is ``6_[0-4:2]``, and ``6_[3]`` is ``6_3``.
    """
    found = _match_label(label)
    if found[3] is None:
        return label
    tasks = tasks_of(label)
    return f"{found[1]}_[{_spec(tasks)}]" if len(tasks) > 1 else f"{found[1]}_{tasks[0]}"


def tasks_of(label: str) -> list[int]:
    """The numbers of the tasks that *label* names, ascending; ValueError if it names none."""
    found = _match_label(label)
    tasks_in(label)
    if found[2] is not None:
        return [int(found[2])]
    if found[3] is None:
        msg = f"{label[:40]!r} names no task of an array"
        raise ValueError(msg)
    return sorted({task for tasks in _array_ranges(found[3]) for task in tasks})


def _spec(tasks: Sequence[int]) -> str:
    """Array spec of two or more *tasks*, which ascend."""
    step = tasks[1] - tasks[0]
    if tasks[-1] - tasks[0] == step * (len(tasks) - 1) and step > 1 < len(tasks) - 1:
        return f"{tasks[0]}-{tasks[-1]}:{step}"
    return ",".join(
        f"{first}-{last}" if last > first else f"{first}" for first, last in _unbroken(tasks)
    )


def _unbroken(tasks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of *tasks*, which ascend."""
    first = last = tasks[0]
    for task in tasks[1:]:
        if task != last + 1:
            yield first, last
            first = task
        last = task
    yield first, last


def address(label: str) -> str:
    """Name of exactly the record *label* for scontrol and scancel; ValueError if it is none.

    Measured on 22.05.8: the plain id of an array reaches its running tasks too, a spec with a
    step is refused, a spec that names some of the pending tasks splits them off, and one that
    names all of them changes their common record and nothing else.
    """
    found = _match_label(label)
    tasks_in(label)
    if found[3] is None:
        return label
    runs = [run for tasks in _array_ranges(found[3]) for run in _runs(tasks)]
    return f"{found[1]}_[{','.join(runs)}]"


def _match_label(label: str) -> re.Match[str]:
    found = _LABEL.fullmatch(label)
    if found is None:
        msg = f"{label[:40]!r} is no job id"
        raise ValueError(msg)
    return found


def _runs(tasks: range) -> list[str]:
    if tasks.step == 1 and len(tasks) > 1:
        return [f"{tasks[0]}-{tasks[-1]}"]
    return [str(task) for task in tasks]

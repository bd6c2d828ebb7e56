"""Squeue's output while it comes, without a record for each of millions of pending tasks.

Whoever runs a tool of Slurm's imports it, users' commands too: nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_dl.slurm.read.job_labels import tasks_as_one


class ArrayFold:
    """Squeue's output with one record for the pending tasks of an array, made while it comes.

    The tasks share an id and all else; their records differ in the label alone. Squeue spells out
    each task with all that its owner wrote, and an array may have millions: the whole output is
    never held.
    """

    def __init__(self, nonce: str) -> None:
        self._field, self._end = f"{nonce}f", f"{nonce}r\n"
        self._rest = b""
        self._labels: dict[tuple[str, str], list[str]] = {}

    def feed(self, chunk: bytes) -> None:
        """Take in the next part of the output."""
        *records, self._rest = (self._rest + chunk).split(self._end.encode())
        self.add(record.decode("utf-8", errors="replace") for record in records)

    def add(self, records: Iterable[str]) -> None:
        """Take in whole records, which begin with JobID and JobArrayID."""
        for record in records:
            at = record.find(self._field)
            first = at + len(self._field) if at >= 0 else len(record)
            end = record.find(self._field, first) % (len(record) + 1)  # -1 is the very end.
            around = record[:first], record[end:]
            self._labels.setdefault(around, []).append(record[first:end])

    def records(self) -> list[str]:
        """The records so far: one for the tasks of an array, others as they came."""
        found = []
        for (before, after), labels in self._labels.items():
            whole = tasks_as_one(labels) if len(labels) > 1 else None
            found += [before + one + after for one in (labels if whole is None else [whole])]
        return found

    def text(self) -> str:
        """The output so far."""
        rest = self._rest.decode("utf-8", errors="replace")
        return "".join(record + self._end for record in self.records()) + rest


def fold_of(args: Sequence[str]) -> ArrayFold | None:
    """The fold of squeue's output for *args*, if they list the tasks of arrays by id and label."""
    if "--array" not in args:
        return None
    fields = [word.partition(":") for word in args[-1].removeprefix("--Format=").split(",")]
    if [name for name, _, _ in fields[:2]] != ["JobID", "JobArrayID"]:
        return None
    return ArrayFold(fields[-1][2].removesuffix("r"))

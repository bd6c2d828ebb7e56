"""What slurmctld says of its configuration and of a partition, read value by value.

A value that is missing or cannot be read is a `CannotTellError` of the check that asks for it and
of no other: releases differ in what they print.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_dl.model.errors import SlurmDlError
from slurm_dl.slurm.controller import options
from slurm_dl.slurm.read.vocabulary import limit_s
from slurm_dl.slurm.releases import Release, Series, parse_release, series_of

_NOTHING = frozenset({"", "(null)", "none", "n/a"})
_LONGEST_SHOWN = 60
_WHOLE = re.compile(r"([0-9]{1,15})(?: sec)?", re.ASCII)
_USER = re.compile(r"([^\s()]+)\(([0-9]{1,10})\)", re.ASCII)


class CannotTellError(SlurmDlError):
    """A check lacks what it needs; its text says what."""


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """The settings of ``scontrol show config``, as `config_values` returns them.

    All that reads a value raises `CannotTellError` where Slurm prints no such key, or no such kind
    of value.
    """

    values: Mapping[str, str]

    def text(self, key: str) -> str:
        """The value of *key*; empty if it is not set."""
        value = self.values.get(key)
        if value is None:
            msg = f"scontrol show config has no {key}"
            raise CannotTellError(msg)
        return "" if value.lower() in _NOTHING else value

    def options(self, key: str) -> Mapping[str, str]:
        """The list of words in *key*, in lower case; the value of each that has one."""
        return options(self.text(key))

    def whole(self, key: str) -> int:
        """A number, of seconds for instance."""
        return _whole(self.text(key), key)

    def option(self, key: str, word: str, default: int) -> int:
        """The number that belongs to *word* in the list *key*; *default* if it is not there."""
        words = self.options(key)
        return _whole(words[word], f"{key}={word}") if word in words else default

    def line_with(self, key: str, word: str, value: object = None) -> str:
        """The line of slurm.conf that adds *word* to the list *key* and keeps what is in it."""
        added = word if value is None else f"{word}={value}"
        return f"{key}={','.join([*self._others(key, word), added])}"

    def line_without(self, key: str, *words: str, none: str = "") -> str:
        """The line of slurm.conf that takes *words* out of the list *key*; *none* if none is left.

        Args:
            words: In lower case.
        """
        return f"{key}={','.join(self._others(key, *words)) or none}"

    def _others(self, key: str, *words: str) -> list[str]:
        there = [part.strip() for part in self.text(key).split(",")]
        return [word for word in there if word and word.partition("=")[0].lower() not in words]

    @property
    def release(self) -> Release:
        """The controller's release; a `ClusterError` if it is in words that nobody knows."""
        return parse_release(self.text("SLURM_VERSION"))

    @property
    def series(self) -> Series:
        """What its release can do."""
        return series_of(self.release)

    @property
    def slurm_user(self) -> tuple[str, int]:
        """Name and uid of SlurmUser."""
        text = self.text("SlurmUser")
        found = _USER.fullmatch(text)
        if found is None:
            msg = f"SlurmUser {text[:_LONGEST_SHOWN]!r} cannot be read"
            raise CannotTellError(msg)
        return found[1], int(found[2])

    @property
    def has_accounting(self) -> bool:
        """Whether there is a slurmdbd."""
        return self.text("AccountingStorageType").lower().endswith("slurmdbd")


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """One partition of ``scontrol show partition``."""

    name: str
    values: Mapping[str, str]

    def text(self, key: str) -> str:
        """The value of *key*; empty if Slurm does not print it: releases differ."""
        value = self.values.get(key, "")
        return "" if value.lower() in _NOTHING else value

    @property
    def limit_s(self) -> float:
        """Longest time limit of its jobs, seconds."""
        return duration_s(self.values.get("MaxTime", ""), f"MaxTime of partition {self.name}")


def duration_s(text: str, what: str) -> float:
    """A time in Slurm's notation, seconds; a `CannotTellError` if it cannot be read."""
    try:
        return limit_s(text)
    except ValueError as err:
        msg = f"{what}: {err}"
        raise CannotTellError(msg) from None


def _whole(text: str, what: str) -> int:
    found = _WHOLE.fullmatch(text.strip())
    if found is None:
        msg = f"{what} is {text[:_LONGEST_SHOWN]!r}, which is no number"
        raise CannotTellError(msg)
    return int(found[1])

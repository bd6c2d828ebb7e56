"""What slurmctld says of its configuration and its partitions, as text that may be anything.

A value that is missing or cannot be read is a `CannotTellError` of the check that asks for it and
of no other: releases differ in what they print.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_dl.doctor.check_result import CannotTellError
from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.read.vocabulary import limit_s
from slurm_dl.slurm.releases import Release, Series, parse_release, series_of

_NOTHING = frozenset({"", "(null)", "none", "n/a"})
_LONGEST_SHOWN = 60
_MOST_DIGITS = 15
_WHOLE = re.compile(rf"([0-9]{{1,{_MOST_DIGITS}}})(?: sec)?", re.ASCII)
_AS_OF = re.compile(r"Configuration data as of ([0-9]{1,12})\s")
_USER = re.compile(r"([^\s()]+)\(([0-9]{1,10})\)", re.ASCII)
_HOLD_S = 120


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """``scontrol show config``, by key.

    Attributes:
        values: As printed; keys in lower case, for Slurm's know no case.
        as_of_s: The controller's clock when it answered, epoch seconds; None if it does not say.
    """

    values: Mapping[str, str]
    as_of_s: float | None = None

    def text(self, key: str) -> str:
        """The value of *key*; empty if it is not set.

        Raises:
            CannotTellError: Slurm does not print such a key.
        """
        value = self.values.get(key.lower())
        if value is None:
            msg = f"scontrol show config has no {key}"
            raise CannotTellError(msg)
        return "" if value.lower() in _NOTHING else value

    def options(self, key: str) -> Mapping[str, str]:
        """The list of words in *key*, in lower case; the value of each that has one.

        Raises:
            CannotTellError: Slurm does not print such a key.
        """
        pairs = (word.strip().partition("=") for word in self.text(key).split(","))
        return {word.lower(): value for word, _, value in pairs if word}

    def line_with(self, key: str, word: str, value: object = None) -> str:
        """The line of slurm.conf that adds *word* to the list *key* and keeps what is in it.

        Raises:
            CannotTellError: Slurm does not print such a key.
        """
        kept = [w for w in self._words(key) if w.partition("=")[0].lower() != word]
        return f"{key}={','.join([*kept, word if value is None else f'{word}={value}'])}"

    def line_without(self, key: str, *words: str, none: str = "") -> str:
        """The line of slurm.conf that takes *words* out of the list *key*; *none* if none is left.

        Raises:
            CannotTellError: Slurm does not print such a key.
        """
        kept = [w for w in self._words(key) if w.partition("=")[0].lower() not in words]
        return f"{key}={','.join(kept) or none}"

    def _words(self, key: str) -> list[str]:
        return [word for part in self.text(key).split(",") if (word := part.strip())]

    def whole(self, key: str) -> int:
        """A number, of seconds for instance.

        Raises:
            CannotTellError: There is no such key, or it is none.
        """
        return whole(self.text(key), key)

    def option(self, key: str, word: str, default: int) -> int:
        """The number that belongs to *word* in the list *key*; *default* if it is not there.

        Raises:
            CannotTellError: It is no number.
        """
        options = self.options(key)
        return whole(options[word], f"{key}={word}") if word in options else default

    @property
    def release(self) -> Release:
        """The controller's release.

        Raises:
            CannotTellError: It does not say, or in words that nobody knows.
        """
        try:
            return parse_release(self.text("SLURM_VERSION"))
        except ClusterError as err:
            raise CannotTellError(str(err)) from None

    @property
    def series(self) -> Series:
        """What its release can do.

        Raises:
            CannotTellError: It does not say which it is.
        """
        return series_of(self.release)

    @property
    def slurm_user(self) -> tuple[str, int]:
        """Name and uid of SlurmUser.

        Raises:
            CannotTellError: It does not say.
        """
        text = self.text("SlurmUser")
        found = _USER.fullmatch(text)
        if found is None:
            msg = f"SlurmUser {text[:_LONGEST_SHOWN]!r} cannot be read"
            raise CannotTellError(msg)
        return found[1], int(found[2])

    @property
    def has_accounting(self) -> bool:
        """Whether there is a slurmdbd.

        Raises:
            CannotTellError: It does not say.
        """
        return self.text("AccountingStorageType").lower().endswith("slurmdbd")

    @property
    def requeue_hold(self) -> tuple[int, str]:
        """How long a requeued job waits before it may start, seconds, and the setting that says so.

        Raises:
            CannotTellError: It does not say.
        """
        if self.series.requeue_delay and "requeue_delay" in self.options("SchedulerParameters"):
            key, word = "SchedulerParameters", "requeue_delay"
        else:
            key, word = "AuthInfo", "cred_expire"
        hold_s = self.option(key, word, _HOLD_S) + 1
        return hold_s, f"{key}={word}"


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
        """Longest time limit of its jobs, seconds.

        Raises:
            CannotTellError: It cannot be read.
        """
        try:
            return limit_s(self.values.get("MaxTime", ""))
        except ValueError as err:
            msg = f"MaxTime of partition {self.name}: {err}"
            raise CannotTellError(msg) from None


def whole(text: str, what: str) -> int:
    """The number in *text*, with or without Slurm's unit behind it.

    Raises:
        CannotTellError: It is none.
    """
    found = _WHOLE.fullmatch(text.strip())
    if found is None:
        msg = f"{what} is {text[:_LONGEST_SHOWN]!r}, which is no number"
        raise CannotTellError(msg)
    return int(found[1])


def read_controller(text: str) -> ControllerConfig:
    """Whatever ``scontrol show config`` printed; the first of two equal keys counts."""
    values: dict[str, str] = {}
    for line in text.split("\n"):
        key, equals, value = line.partition("=")
        if equals:
            values.setdefault(key.strip().lower(), value.strip())
    found = _AS_OF.match(text)
    return ControllerConfig(values, float(found[1]) if found else None)


def read_partitions(text: str) -> tuple[PartitionRecord, ...]:
    """Whatever ``scontrol show partition --oneliner`` printed."""
    seen = []
    for line in text.split("\n"):
        pairs = (word.partition("=") for word in line.split())
        values = {key: value for key, equals, value in pairs if equals}
        if "PartitionName" in values:
            seen.append(PartitionRecord(values["PartitionName"], values))
    return tuple(seen)

"""Hints for a job's own communication and placement: rows F3 to F8 of the published systems.

A hint sets environment variables and tells the scheduler something of the job. slurm_dl changes
nothing else: the framework, or the script, has to understand it. One that may change results in
their last digits has no value of its own, so that it is in force only by the user's word.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal

from slurm_dl.job.ddp_options import BUCKET_VARIABLE
from slurm_dl.job.progress import HINTS_VARIABLE
from slurm_dl.model.errors import ConfigError
from slurm_dl.submit.option_values import plain_name
from slurm_dl.text import shown

MOST_PARTS: Final = 8  # Components of one heterogeneous job


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """One row of the table.

    Attributes:
        variables: Environment variables of the job, each with its value; None: that of the hint.
        values: Whole numbers or words that it can be given; empty: it takes none.
        default: Its value where none is given; None: one has to be given.
        apart: Runs with it are compared only with runs that have the same value of it.
        build: The framework that understands it.
        source: The system, and who documents the variables.
    """

    variables: Mapping[str, str | None]
    values: range | tuple[str, ...] | Literal["TYPE:N+TYPE:N"] = ()
    default: str | None = ""
    numerics: bool = False  # It may change results: sums are formed in another order
    apart: bool = True
    launchers: str = "all"  # Launchers with which it can be used
    build: str
    source: str

    @property
    def takes(self) -> str:
        """The text behind ``=``, for people; empty: nothing."""
        if isinstance(self.values, range):
            return f"{self.values[0]}..{self.values[-1]}"
        return self.values if isinstance(self.values, str) else "|".join(self.values)


HINTS: Final[Mapping[str, Hint]] = {
    "tictac": Hint(
        variables={"SLURM_DL_TICTAC": None},
        values=("tic", "tac"),
        default="tic",
        build="a TensorFlow parameter server whose script calls tictac",
        source="F3 TicTac, MLSys 2019; xldrx/tictac documents no variable, this one is ours",
    ),
    "p3": Hint(
        variables={"MXNET_KVSTORE_SLICE_THRESHOLD": None},
        values=range(1_000, 100_000_001),
        default="40000",
        build="MXNet 1.6 or later with a key-value store of P3",
        source="F4 P3, MLSys 2019; MXNet, env_var.md: parameters of a slice",
    ),
    "p3_ddp": Hint(
        variables={BUCKET_VARIABLE: None},
        values=range(1, 1025),
        default=None,
        numerics=True,
        build="PyTorch DDP by slurm_dl.job.ddp_arguments()",
        source="F4 P3, MLSys 2019; bucket_cap_mb of DDP, this variable is ours",
    ),
    "byteps": Hint(
        variables={"BYTEPS_PARTITION_BYTES": None, "BYTEPS_SERVER_ENABLE_SCHEDULE": "1"},
        values=range(65_536, 1_073_741_825),
        default="4096000",
        build="BytePS (workers and servers)",
        source="F5 ByteScheduler, SOSP 2019; bytedance/byteps, docs/env.md",
    ),
    "shape_locked": Hint(
        variables={},
        apart=False,
        build="any: the job keeps its size and, once it has run, its GPU type",
        source="F6 Spotlight, ICML 2018; F7 Mirhoseini et al., ICML 2017",
    ),
    "heterog": Hint(
        variables={"SLURM_DL_DEVICE_MAP": None},
        values="TYPE:N+TYPE:N",
        default=None,
        launchers="srun",
        build="any script that reads the map, such as 0-1=a100,2-5=v100",
        source="F8 HeteroG, CoNEXT 2020; the variable is ours",
    ),
}
"""Each hint by its name."""


@dataclass(frozen=True, slots=True)
class Given:
    """The hints of one job, each with its value."""

    values: Mapping[str, str]

    @property
    def variables(self) -> dict[str, str]:
        """Variables that the batch script exports, of the table's alphabet alone."""
        found = {
            name: fixed or (self.device_map if hint == "heterog" else value)
            for hint, value in sorted(self.values.items())
            for name, fixed in HINTS[hint].variables.items()
        }
        return {**found, HINTS_VARIABLE: self.apart} if self.apart else found

    @property
    def apart(self) -> str:
        """Those by which its speed is told apart, sorted."""
        named = [f"{name}={value}" for name, value in self.values.items() if HINTS[name].apart]
        return ",".join(sorted(named))

    @property
    def claims(self) -> dict[str, object]:
        """Keys of the job's comment."""
        return {k: v for k, v in (("hints", self.apart), ("locked", int(self.locked))) if v}

    @property
    def locked(self) -> bool:
        """The job keeps its shape."""
        return "shape_locked" in self.values

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """GPU type and GPUs of each component; empty: it has one and any type."""
        return parts_of(self.values["heterog"]) if "heterog" in self.values else ()

    @property
    def device_map(self) -> str:
        """Ranks on each GPU type, ``0-1=a100,2-5=v100``: one rank for each GPU, part by part."""
        ends = accumulate(gpus for _, gpus in self.parts)
        each = zip(ends, self.parts, strict=True)
        return ",".join(f"{end - gpus}-{end - 1}={kind}" for end, (kind, gpus) in each)


NO_HINTS: Final = Given({})


def read(typed: Sequence[str]) -> Given:
    """The hints of ``--hint NAME[=VALUE]``, each *typed* once.

    Raises:
        ConfigError: There is no such hint, or the value is none of its own.
    """
    values: dict[str, str] = {}
    for text in typed:
        name, equals, value = text.partition("=")
        hint = HINTS.get(name)
        if hint is None:
            near = difflib.get_close_matches(name, HINTS, n=1)
            which = f"do you mean {near[0]}?" if near else f"there are {', '.join(HINTS)}"
            msg = f"--hint: there is no hint {shown(name)}; {which} (--list-hints)"
            raise ConfigError(msg)
        if name in values:
            msg = f"--hint: {name} is given twice; leave one out"
            raise ConfigError(msg)
        values[name] = _value(name, hint, value if equals else hint.default)
    return Given(values)


def _value(name: str, hint: Hint, value: str | None) -> str:
    if value is None:
        why = ": it may change results in their last digits" if hint.numerics else ""
        msg = f"--hint: {name} needs a value{why}; give {name}={hint.takes}"
        raise ConfigError(msg)
    if isinstance(hint.values, str):
        return "+".join(f"{kind}:{gpus}" for kind, gpus in parts_of(value))
    if isinstance(hint.values, range):
        fits = value.isascii() and value.isdecimal() and len(value) <= 10  # noqa: PLR2004
        if fits and int(value) in hint.values:
            return str(int(value))
    elif value in (hint.values or ("",)):
        return value
    takes = f"takes {hint.takes}" if hint.takes else "takes no value"
    msg = f"--hint: {name} {takes}, not {shown(value)}"
    raise ConfigError(msg)


def parts_of(text: str) -> tuple[tuple[str, int], ...]:
    """Components of ``a100:2+v100:4``: GPU type and GPUs of each.

    Raises:
        ConfigError: It is no such text, has one component, more than `MOST_PARTS`, or one twice.
    """
    found = {}
    for part in text.split("+"):
        kind, _, count = part.partition(":")
        plain_name(kind, "--hint heterog")
        if not (count.isascii() and count.isdecimal() and len(count) < 5 and int(count)):  # noqa: PLR2004
            msg = f"--hint: heterog takes TYPE:GPUS+TYPE:GPUS, not {shown(text)}"
            raise ConfigError(msg)
        found[kind] = int(count)
    if not 1 < len(found) == text.count("+") + 1 <= MOST_PARTS:
        msg = f"--hint: heterog takes 2 to {MOST_PARTS} types, each once, not {shown(text)}"
        raise ConfigError(msg)
    return tuple(found.items())

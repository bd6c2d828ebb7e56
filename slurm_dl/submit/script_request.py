"""All that is said of a batch script's job: the line, the environment, the script, the usual."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from slurm_dl.client_config import ClientConfig
from slurm_dl.submit import option_values
from slurm_dl.submit.job_request import DEFAULT_RUN_DIR
from slurm_dl.submit.parameter_sweep import Sweep
from slurm_dl.submit.user_script import UserScript

GPU_OPTIONS = (
    "gpus",
    "gpus-per-node",
    "gpus-per-socket",
    "gpus-per-task",
    "gres",
    "gres-per-task",
    "tres-per-task",
)
"""Options of sbatch that say how many GPUs."""

_TO_SBATCH = {
    "gpus": "gpus",
    "nodes": "nodes",
    "ntasks_per_node": "ntasks-per-node",
    "name": "job-name",
    "partition": "partition",
    "time": "time",
    "array": "array",
    "output": "output",
}
"""Options of dlsubmit that are sbatch's too, by their names there."""

_SHAPE = frozenset({*GPU_OPTIONS, "nodes", "ntasks", "ntasks-per-node", "cpus-per-gpu"})
"""Options of sbatch that a default gives to no script."""

_EITHER = (("mem", "mem-per-cpu", "mem-per-gpu"), ("requeue", "no-requeue"))
"""Options that exclude each other."""

_VARIABLE = {"time": "SBATCH_TIMELIMIT", "array": "SBATCH_ARRAY_INX"}
"""Variables of sbatch that are not named as its options."""


@dataclass(slots=True, kw_only=True)
class ScriptRequest:
    """All that a script's job is made of.

    Attributes:
        typed: dlsubmit's options that were given, by the names of its parameters; a flag is True.
        usual: Such options that hold where neither the line nor the script says otherwise.
    """

    script: UserScript  # The script
    script_args: Sequence[str]  # Its arguments
    typed: Mapping[str, str | bool]
    usual: Mapping[str, str | bool]
    usual_sbatch: Sequence[str]  # sbatch's options that do
    sbatch: Sequence[str]  # sbatch's options on the line, ``--name`` or ``--name=value``
    environ: Mapping[str, str]  # The user's environment, without what is of another job
    site: ClientConfig  # The site's choices
    dlrun: str  # Absolute path of dlrun on the compute nodes
    cwd: str  # Directory of submission
    sweep: Sweep | None = None  # The job is an array of this
    notes: list[str] = field(default_factory=list)

    def given(self, name: str) -> str | bool | None:
        """An option of dlsubmit: from the line, else as usual."""
        return self.typed.get(name, self.usual.get(name))

    def text(self, name: str, default: str) -> str:
        """The same, of one that has a value."""
        value = self.given(name)
        return value if isinstance(value, str) else default

    def said(self, *names: str) -> tuple[str, str | None] | None:
        """The last word on *names* of the line, the environment, the script, or as usual.

        Returns:
            The option's name and value, as sbatch will have it; None if it is not given.
        """
        return self.own(*names) or _last(self.as_usual(), names)

    def own(self, *names: str) -> tuple[str, str | None] | None:
        """The same, but for what is as usual."""
        if found := _last(self.options(), names):
            return found
        for name in names:
            variable = variable_of(name)
            if variable in self.environ:
                return name, self.environ[variable]
        for option in reversed(self.script.options):
            if option.name in names:
                return option.name, option.value
        return None

    def as_usual(self) -> list[str]:
        """Options that hold as usual beside those that are given; the shape is the script's own."""
        ours = [
            f"--{theirs}={value}"
            for name, theirs in _TO_SBATCH.items()
            if isinstance(value := self.usual.get(name), str)
        ]
        names = {word: word.removeprefix("--").partition("=")[0] for word in ours}
        names |= {word: word.removeprefix("--").partition("=")[0] for word in self.usual_sbatch}
        either = {name: family for family in _EITHER for name in family}
        return [
            word
            for word, name in names.items()
            if name not in _SHAPE and self.own(*either.get(name, (name,))) is None
        ]

    def run_base(self) -> str:
        """Absolute directory under which each job gets its run directory."""
        return os.path.normpath(PurePath(self.cwd, self.text("run_dir", DEFAULT_RUN_DIR)))

    def options(self) -> list[str]:
        """Options of sbatch on the line, with those of dlsubmit that are sbatch's too."""
        ours = [
            f"--{theirs}={option_values.clean_text(value, f'--{theirs}')}"
            for name, theirs in _TO_SBATCH.items()
            if isinstance(value := self.typed.get(name), str)
        ]
        return [*ours, *self.sbatch]


def _last(words: Sequence[str], names: Sequence[str]) -> tuple[str, str | None] | None:
    for word_ in reversed(words):
        name, equals, value = word_.removeprefix("--").partition("=")
        if name in names:
            return name, value if equals else None
    return None


def variable_of(option: str) -> str:
    """The variable by which sbatch reads *option*."""
    return _VARIABLE.get(option) or f"SBATCH_{option.upper().replace('-', '_')}"

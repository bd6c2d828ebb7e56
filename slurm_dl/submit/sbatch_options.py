"""sbatch's options, and the division of a command line into ours, sbatch's and what is run.

Everything before the first ``--`` is options, everything after it the command. A word there that
is no option names a batch script, and what follows are its arguments. sbatch's options
are passed on as ``--long=value``, whatever way they were written, so that no value can be read as
another option. Names, short forms and arities are those that sbatch 22.05.8 itself reports; a
test on a real sbatch compares them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from slurm_dl.model.errors import ConfigError
from slurm_dl.submit.option_values import clean_text
from slurm_dl.text import shown


class Takes(Enum):
    """Whether an option has a value."""

    NOTHING = "nothing"
    MAYBE = "maybe"  # Only as ``--option=value``; alone it is a flag
    VALUE = "value"


_WITH_VALUE = """
account:A acctg-freq array:a batch bb bbf begin:b chdir:D cluster cluster-constraint clusters:M
comment constraint:C container context core-spec:S cores-per-socket cpu-freq cpus-per-gpu
cpus-per-task:c deadline delay-boot dependency:d distribution:m error:e exclude:x export
export-file extra-node-info:B gid gpu-bind gpu-freq gpus:G gpus-per-node gpus-per-socket
gpus-per-task gres gres-flags hint input:i job-name:J kill-on-invalid-dep licenses:L mail-type
mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile:F nodelist:w
nodes:N ntasks:n ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket
ntasks-per-tres open-mode output:o partition:p power prefer priority profile qos:q reservation
signal sockets-per-node switches tasks-per-node thread-spec threads-per-core time:t time-min tmp
uid wait-all-nodes wckey wrap
"""
_MAYBE_VALUE = "exclusive get-user-env nice no-kill:k propagate"
_WITHOUT_VALUE = """
contiguous help:h hold:H ignore-pbs no-requeue overcommit:O oversubscribe:s parsable quiet:Q
reboot requeue spread-job test-only usage use-min-nodes verbose:v version:V wait:W
"""

# Newer than 22.05, or srun's and salloc's and asked for by mistake.
_LATER_WITH_VALUE = "container-id extra gres-per-task het-group segment tres-bind tres-per-task"
_LATER_MAYBE = "oom-kill-step resv-ports"
_LATER_WITHOUT_VALUE = "consolidate-segments external spread-segments stepmgr"

_GPUS_ARE_OURS = "give the job's GPUs as --gpus=[TYPE:]N, and --nodes if you care"
_ONE_CLUSTER = "submit on a host of that cluster, or set SLURM_CONF"

REFUSED: Mapping[str, str] = {
    "batch": "dlrun runs on the first node of the job",
    "cluster": _ONE_CLUSTER,
    "clusters": _ONE_CLUSTER,
    "container-id": "give the image as dlsubmit --container=IMAGE",
    "external": "the job must be a batch job",
    "gid": "submit as that user",
    "gpus-per-node": _GPUS_ARE_OURS,
    "gpus-per-socket": _GPUS_ARE_OURS,
    "gpus-per-task": f"it hides a task's GPUs from its neighbours; {_GPUS_ARE_OURS}",
    "gres-per-task": _GPUS_ARE_OURS,
    "het-group": "heterogeneous jobs cannot be preempted and resumed",
    "ntasks": "use --ntasks-per-node with --launcher=srun",
    "ntasks-per-gpu": "use --ntasks-per-node with --launcher=srun",
    "ntasks-per-tres": "use --ntasks-per-node with --launcher=srun",
    "test-only": "use --dry-run",
    "uid": "submit as that user",
    "usage": "see --help",
    "wait": "a job that is put back into the queue ends more than once",
    "wrap": "the command goes after --",
}
"""sbatch's options that would break a preemptible job, and what to do instead."""

OF_A_SCRIPT = frozenset(
    name for name in REFUSED if name.startswith(("gpus-per-", "gres-per-", "ntasks"))
)
"""Those of them that may go with a batch script, whose shape is its own matter."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of sbatch, or of dlsubmit."""

    name: str
    takes: Takes


def _table(words: str, takes: Takes) -> dict[str, Option]:
    table: dict[str, Option] = {}
    for word in words.split():
        name, _, short = word.partition(":")
        table[f"--{name}"] = Option(name, takes)
        if short:
            table[f"-{short}"] = table[f"--{name}"]
    return table


SBATCH_22_05: Mapping[str, Option] = {
    **_table(_WITH_VALUE, Takes.VALUE),
    **_table(_MAYBE_VALUE, Takes.MAYBE),
    **_table(_WITHOUT_VALUE, Takes.NOTHING),
}
"""Every option of sbatch 22.05, by each of its spellings."""

SBATCH: Mapping[str, Option] = {
    **SBATCH_22_05,
    **_table(_LATER_WITH_VALUE, Takes.VALUE),
    **_table(_LATER_MAYBE, Takes.MAYBE),
    **_table(_LATER_WITHOUT_VALUE, Takes.NOTHING),
}
"""The same with the options of later releases, which an older sbatch refuses by itself."""

_LONG = re.compile(r"--[A-Za-z0-9][A-Za-z0-9_-]*", re.ASCII)
GPU_GRES = re.compile(r"(gres[:/])?(gpu|mps|shard)(?=[:/=]|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """A command line, divided."""

    own: tuple[str, ...]  # dlsubmit's options as ``--long`` or ``--long=value``
    sbatch: tuple[str, ...]  # sbatch's options, the same way
    command: tuple[str, ...]  # What the job runs
    script: tuple[str, ...] = ()  # Or its batch script, with arguments


def divide(args: Sequence[str], own: Mapping[str, Option]) -> CommandLine:
    """Divide *args*; *own* holds dlsubmit's options by each of their spellings.

    Raises:
        ConfigError: An option is unknown, refused, shortened, or lacks its value.
    """
    words = list(args)
    script: list[str] = []
    passed: list[tuple[Option, str | None]] = []
    for_us: list[str] = []
    at = 0
    while at < len(words) and words[at] != "--":
        if words[at] not in {"", "-", ":"} and not words[at].startswith("-"):
            script = words[at:]
            at = len(words)
            break
        following = words[at + 1] if words[at + 1 : at + 2] not in ([], ["--"]) else None
        found, used = (
            _long(words[at], following, own)
            if words[at].startswith("--")
            else _short(words[at], following, own)
        )
        at += used
        for option, value in found:
            if f"--{option.name}" in own:
                for_us.append(_word(option, value))
            else:
                passed.append((option, value))
    for option, value in passed:
        _check_passed(option, value, is_script=bool(script))
    return CommandLine(
        own=tuple(for_us),
        sbatch=tuple(_word(option, value) for option, value in passed),
        command=tuple(words[at + 1 :]),
        script=tuple(script),
    )


def _word(option: Option, value: str | None) -> str:
    return f"--{option.name}" if value is None else f"--{option.name}={value}"


_Found = list[tuple[Option, str | None]]


def _long(word: str, following: str | None, own: Mapping[str, Option]) -> tuple[_Found, int]:
    """Read ``--name``, ``--name=value`` or ``--name value``; how many words that took."""
    name, equals, value = word.partition("=")
    option = own.get(name) or SBATCH.get(name)
    if option is None:
        option = _unknown(name, following, own, has_value=bool(equals))
    if equals:
        return [(option, value)], 1
    if option.takes is not Takes.VALUE:
        return [(option, None)], 1
    return [(option, _next_value(name, following))], 2


def _short(word: str, following: str | None, own: Mapping[str, Option]) -> tuple[_Found, int]:
    """Read ``-A value``, ``-Avalue`` or flags in one word such as ``-Hv``."""
    if len(word) < 2 or word[0] != "-":  # noqa: PLR2004 - a dash and a letter
        hint = (
            "heterogeneous jobs are --hint heterog=TYPE:N+TYPE:N"
            if word == ":"
            else "COMMAND goes after --"
        )
        msg = f"{shown(word)} is not an option: {hint}"
        raise ConfigError(msg)
    found: _Found = []
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        name = f"-{letter}"
        option = own.get(name) or SBATCH.get(name)
        if option is None:
            msg = f"unknown option {shown(name)} in {shown(word)}"
            raise ConfigError(msg)
        match option.takes:
            case Takes.NOTHING:
                found.append((option, None))
            case Takes.MAYBE:
                found.append((option, letters or None))
                letters = ""
            case Takes.VALUE if letters:
                found.append((option, letters))
                letters = ""
            case Takes.VALUE:
                found.append((option, _next_value(name, following)))
                return found, 2
    return found, 1


def _next_value(name: str, following: str | None) -> str:
    if following is None:
        msg = f"{name} needs a value"
        raise ConfigError(msg)
    if following.startswith("-"):
        how = f"{name}=VALUE" if name.startswith("--") else f"{name}VALUE in one word"
        msg = f"{name} needs a value, and {shown(following)} looks like an option; write {how}"
        raise ConfigError(msg)
    return following


def _unknown(
    name: str, following: str | None, own: Mapping[str, Option], *, has_value: bool
) -> Option:
    """An option that only this site's sbatch may know, of a plug-in or of a later release."""
    if not _LONG.fullmatch(name):
        msg = f"{shown(name)} is not an option"
        raise ConfigError(msg)
    # sbatch takes unique beginnings for the whole option: --wra would pass for --wrap.
    longer = sorted({o for o in (*own, *SBATCH) if o.startswith(name)})
    if longer:
        msg = f"{name} is short for {' or '.join(longer)}; write it in full"
        raise ConfigError(msg)
    if not has_value and following is not None and not following.startswith("-"):
        msg = (
            f"{name} is not known here, so {shown(following)} cannot be placed: write"
            f" {name}=VALUE if it is an option of your sbatch, COMMAND after --"
        )
        raise ConfigError(msg)
    return Option(name.removeprefix("--"), Takes.MAYBE)


def _check_passed(option: Option, value: str | None, *, is_script: bool) -> None:
    """Refuse what would break the job's contract or the script."""
    if option.name in REFUSED and not (is_script and option.name in OF_A_SCRIPT):
        msg = f"--{option.name} cannot be used: {REFUSED[option.name]}"
        raise ConfigError(msg)
    if value is None:
        return
    clean_text(value, f"--{option.name}")
    items = [item.strip() for item in value.split(",")]
    of_gpus = option.name in {"gres", "tres-per-task"} and not is_script
    if of_gpus and any(GPU_GRES.match(item) for item in items):
        msg = f"--{option.name}={value}: {_GPUS_ARE_OURS}"
        raise ConfigError(msg)
    if option.name == "open-mode" and value != "append":
        msg = f"--open-mode={value}: a requeued job would lose its log; only append is possible"
        raise ConfigError(msg)


def given(sbatch: Sequence[str], names: Collection[str]) -> str | None:
    """The first of sbatch's options *names* that the user gave, as ``--name``; None if none."""
    words = (option.partition("=")[0] for option in sbatch)
    return next((word for word in words if word.removeprefix("--") in names), None)

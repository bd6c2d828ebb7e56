"""Faults that are found before a job is submitted, and notes on what its user may not expect.

Slurm takes a job whose script or log directory is missing, and says nothing when that fails on the
node. The submit host is looked at, so where compute nodes see other paths the user can say so.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from slurm_dl.client_config import ClientConfig
from slurm_dl.model.errors import ConfigError
from slurm_dl.submit import host_resources, job_environment, job_extras, job_shape, option_values
from slurm_dl.submit.batch_script import tasks_per_node
from slurm_dl.submit.host_resources import Wanted
from slurm_dl.submit.job_environment import NO_SETUP
from slurm_dl.submit.job_request import JobRequest, SubmitOptions, qos_of
from slurm_dl.submit.job_shape import GpuPartition, JobShape, NodeRange
from slurm_dl.text import safe

_INTERPRETER = re.compile(r"python[0-9.]*|bash|sh|dash|zsh|ksh")
_NO_SCRIPT = frozenset({"-c", "-m", "-s", "-"})
"""Options of an interpreter after which there is no script."""

_WITH_VALUE = frozenset({"-W", "-X", "-o", "-O"})


def check(
    request: JobRequest,
    wanted: Wanted,
    partitions: Sequence[GpuPartition],
    directives: Sequence[str],
    *,
    cwd: Path,
    path: str | None,
    level: Literal["none", "note", "error"],
) -> list[str]:
    """Notes on what the job may lack.

    Args:
        directives: What dlsubmit found out to ask for.
        cwd: Directory of submission.
        path: Where programs are looked for; the job gets the same PATH.
        level: What becomes of what the job lacks for certain; with ``none`` nothing is looked at.

    Raises:
        ConfigError: It lacks something for certain: what, where, what to do.
    """
    if level == "none":
        return []
    wrong = _problems(request, wanted, partitions, directives, cwd)
    if wrong and level == "error":
        msg = f"{'; '.join(wrong)} (--no-check submits it all the same)"
        raise ConfigError(msg)
    notes = [f"would be refused: {problem}" for problem in wrong]
    note = _command_note(request, cwd, path)
    return [*notes, note] if note else notes


def _problems(
    request: JobRequest,
    wanted: Wanted,
    partitions: Sequence[GpuPartition],
    directives: Sequence[str],
    cwd: Path,
) -> list[str]:
    options = _options((*directives, *request.sbatch))
    found = [*request.setup.problems, _cpus(request, wanted, partitions, options)]
    directory = cwd / options.get("chdir", "")
    try:
        found.append(_directory(directory))
        if not found[-1]:
            if not (request.setup.inside or request.setup.srun_options):
                found.append(_script(request, directory))
            found.append(_log(directory, options.get("error"), "--error"))
            found.append(_log(directory, request.output, "--output"))
        found.append(run_base(Path(request.run_base)))
    except PermissionError as err:
        found.append(f"no permission to look for {_path(err.filename)}")
    return [problem for problem in found if problem]


def _command_note(request: JobRequest, cwd: Path, path: str | None) -> str:
    """That the program is not on *path*; its nodes may have it where this host has not."""
    name = request.command[0]
    if request.setup != NO_SETUP or "/" in name or _is_script(request):
        return ""
    if shutil.which(name, path=path):
        return ""
    there = cwd / _options(request.sbatch).get("chdir", "") / name
    remedy = ""
    if there.is_file():
        remedy = f"; to run the file in {_path(there.parent)} write ./{name}"
    return f"{_path(name)} is not on PATH here: the job fails unless its nodes have it{remedy}"


def _path(path: object) -> str:
    """A path of the user's, in quotes, as a terminal may show it; whole unless it is very long."""
    return f"'{safe(str(path), 500)}'"


def _options(words: Sequence[str]) -> Mapping[str, str]:
    """Options of sbatch with their values, the last of each: it wins."""
    return dict(word.removeprefix("--").partition("=")[::2] for word in words)


def _is_script(request: JobRequest) -> bool:
    """Torchrun runs a Python file, or a module, by itself."""
    first = request.command[0]
    return request.launcher == "torchrun" and (first == "-m" or first.endswith(".py"))


def _directory(directory: Path) -> str:
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        return f"--chdir: {_path(directory)} {what}; create it or name another one"
    if not os.access(directory, os.X_OK):
        return f"--chdir: no permission to enter {_path(directory)}"
    return ""


def _script(request: JobRequest, directory: Path) -> str:
    first = request.command[0]
    if _is_script(request):
        return "" if first == "-m" else _file(directory, first, to_execute=False)
    if "/" in first and (problem := _file(directory, first, to_execute=True)):
        return problem
    if _INTERPRETER.fullmatch(Path(first).name) is None:
        return ""
    words = iter(request.command[1:])
    for word in words:
        if word in _NO_SCRIPT:
            return ""
        if word in _WITH_VALUE:
            next(words, "")
        elif not word.startswith("-"):
            return _file(directory, word, to_execute=False)
    return ""


def _file(directory: Path, name: str, *, to_execute: bool) -> str:
    path = directory / name
    at = f"COMMAND: {_path(name)}" + ("" if name.startswith("/") else f" in {_path(directory)}")
    if not path.exists():
        return f"{at} does not exist; correct the path, or submit from the directory it lies in"
    if path.is_dir() and to_execute:
        return f"{at} is a directory; name the program in it"
    if not os.access(path, os.R_OK):
        return f"{at} cannot be read: no permission"
    if to_execute and not os.access(path, os.X_OK):
        return f"{at} is not executable; chmod +x it, or name its interpreter before it"
    return ""


def _log(directory: Path, pattern: str | None, option: str) -> str:
    """Slurm makes no directory for a log, and a job without one fails without a word."""
    if not pattern:
        return ""
    path = directory / pattern
    if "%" in str(path.parent) or "\\" in pattern:
        return ""  # Known only when the job starts.
    if path.exists():
        may = os.access(path, os.W_OK)
        return "" if may else f"{option}: no permission to write {_path(pattern)}"
    if not path.parent.is_dir():
        at = _path(path.parent)
        return f"{option}: directory {at} does not exist, and Slurm makes none; mkdir -p it"
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return f"{option}: no permission to write into {_path(path.parent)}"
    return ""


def run_base(base: Path) -> str:
    """The job makes it; so what there is of it must be a directory to write into."""
    there = next(p for p in (base, *base.parents) if p.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return ""
    what = "no permission to write into" if there.is_dir() else "no directory:"
    return f"--run-dir: {what} {_path(there)}; name another one"


def _cpus(
    request: JobRequest,
    wanted: Wanted,
    partitions: Sequence[GpuPartition],
    options: Mapping[str, str],
) -> str:
    """CPUs on one node that no node has: Slurm takes such a job and lets it wait for ever."""
    hosts = [node.host for node in host_resources.kinds(partitions, wanted) if node.host]
    if not hosts:
        return ""
    gpus = wanted.gpus_per_node if isinstance(wanted, JobShape) else 1
    times = {"cpus-per-task": tasks_per_node(request, wanted), "cpus-per-gpu": gpus, "mincpus": 1}
    most = max(host.cpus for host in hosts)
    for name, n in times.items():
        value = options.get(name, "")
        asked = int(value) * n if value.isascii() and value.isdecimal() else 0
        if asked > most:
            where = ",".join(partition.name for partition in partitions)
            return (
                f"--{name}={value}: {asked} CPUs on a node, and no node of partition {where} that "
                f"suits the job has more than {most}: it would wait for ever; ask for fewer"
            )
    return ""


def notes_on(request: JobRequest, chosen: Wanted, cleaned: job_environment.Cleaned) -> list[str]:
    """What the user may not expect, one line each."""
    notes = []
    if cleaned.ignored:
        notes.append(
            f"ignored from the environment: {', '.join(cleaned.ignored)}"
            " (--keep-sbatch-env keeps those that set nothing of dlsubmit's)"
        )
    if request.hints.parts:
        notes.append("its components start together, and it is never preempted or requeued")
    if not chosen.enough_up:
        notes.append("not enough of the nodes are up; the job will wait for them")
    most_nodes = chosen.most_nodes if isinstance(chosen, NodeRange) else chosen.nodes
    most_nodes = max([most_nodes, *(size.nodes for size in job_extras.shapes(request))])
    if most_nodes > 1 and chosen.gpu_type is None and len(chosen.types) > 1:
        types = ", ".join(gpu_type or job_shape.UNTYPED for gpu_type in chosen.types)
        notes.append(f"the nodes may have different GPUs ({types}); give --gpu-type")
    if most_nodes > 1 and request.launcher == "plain":
        notes.append(
            f"COMMAND runs on the first of {most_nodes} nodes only; use --launcher=torchrun or"
            " srun unless it starts the others itself"
        )
    if request.sizes:
        named = ", ".join(map(str, request.sizes))
        notes.append(
            f"it may run in any of {named} (nodes x GPUs): each run has the whole time limit, which"
            f" must do for {request.sizes[0]}, and COMMAND must go by the GPUs that it gets"
            + (
                " ($SLURM_NNODES, $SLURM_GPUS_ON_NODE)"
                if request.launcher == "plain"
                else f" ({request.launcher} starts one process for each)"
            )
        )
    if request.array is not None and "%a" not in request.output:
        notes.append(f"all tasks of the array write to {request.output}; use %A_%a in --output")
    if request.due_s is not None:
        at = time.strftime("%a %Y-%m-%d %H:%M", time.localtime(request.due_s))
        notes.append(f"due {at}; it is promised only where a verdict says so")
    return notes


def grace_note(request: JobRequest, typed: SubmitOptions) -> str:
    """That the grace was cut to the site's limit; empty if it was not."""
    asked_s = option_values.grace(typed.grace)
    if asked_s <= request.grace_s:
        return ""
    return (
        f"grace cut from {asked_s:g} s to {request.grace_s:g} s, the site's limit"
        " (preemption.max_grace_s): a job that asks for more is not preempted; see that its"
        " checkpoint takes no longer, or give --no-preempt"
    )


def qos_notes(request: JobRequest, at_site: ClientConfig, typed: SubmitOptions) -> list[str]:
    """What follows from the QOS for who may take the job's GPUs."""
    notes = [at_site.trouble] if at_site.trouble else []
    if not (at_site.qos and at_site.native):
        return notes
    chosen = qos_of(request.sbatch)
    inside = chosen is not None and chosen.lower() == at_site.qos.lower()
    if typed.no_preempt and inside:
        notes.append(
            f"--no-preempt has no effect in QOS {chosen}: Slurm itself preempts there; leave --qos"
            " out"
        )
    elif not typed.no_preempt and chosen is not None and not inside:
        notes.append(
            f"with --qos={chosen} the job will not give way, and nobody gives way to it: here that"
            f" is for jobs of QOS {at_site.qos} (leave --qos out)"
        )
    return notes

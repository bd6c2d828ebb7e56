"""The environment that sbatch gets, and what the batch script sets in it.

sbatch gets the user's, without what would change the job behind its back:
sbatch reads an option from ``SBATCH_*`` whenever the command line does not give it, and that beats
the script's own ``#SBATCH`` lines. And a job submitted from inside another job inherits that
job's variables: measured on Slurm 22.05.8, a first run then saw the outer job's
``SLURM_RESTART_COUNT`` and ``SLURM_ARRAY_JOB_ID``, because Slurm sets these only when they apply.

The batch script sets modules, conda, a virtual environment, a setup file and a container before
dlrun takes over, so that no shell stands between the signal and the training. A container is
started under dlrun, by srun once for each task.

Sources: conda's own hook calls ``conda shell.posix activate``, micromamba's ``micromamba shell
activate --shell bash`` (mamba-org/mamba 31733c5, libmamba/data/micromamba.sh); manuals of Apptainer
and of NVIDIA/pyxis.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from slurm_dl.model.errors import ConfigError
from slurm_dl.submit.hints import NO_HINTS, Given
from slurm_dl.submit.option_values import clean_text
from slurm_dl.submit.shell_quoting import UserText, quote
from slurm_dl.text import shown

_ALSO_SBATCH_INPUT = frozenset({"SLURM_CLUSTERS", "SLURM_CONTAINER", "SLURM_HINT"})

_NEVER_KEPT = frozenset(
    {
        "SBATCH_ARRAY_INX",
        "SBATCH_BATCH",
        "SBATCH_CLUSTERS",
        "SBATCH_CONTAINER",
        "SBATCH_GPUS",
        "SBATCH_GPUS_PER_NODE",
        "SBATCH_GPUS_PER_SOCKET",
        "SBATCH_GPUS_PER_TASK",
        "SBATCH_GRES",
        "SBATCH_JOB_NAME",
        "SBATCH_NO_REQUEUE",
        "SBATCH_OPEN_MODE",
        "SBATCH_OUTPUT",
        "SBATCH_REQUEUE",
        "SBATCH_SIGNAL",
        "SBATCH_WAIT",
        "SLURM_CLUSTERS",
        "SLURM_CONTAINER",
    }
)
"""Options that dlsubmit sets itself or refuses on its command line."""

_SLURM_KEPT = frozenset({"SLURM_CONF", "SLURM_DEBUG_FLAGS", "SLURM_JWT", "SLURM_TIME_FORMAT"})
"""About the cluster and the user, not about a job."""

_SET_ONLY_WHERE_THEY_APPLY = ("SLURM_ARRAY_", "SLURM_RESTART_COUNT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """An environment for sbatch."""

    environ: dict[str, str]  # What sbatch gets
    ignored: tuple[str, ...]  # Input variables of sbatch that were left out, sorted


def clean(environ: Mapping[str, str], *, keep_sbatch: bool) -> Cleaned:
    """Leave out what would override the job.

    Args:
        environ: The user's environment.
        keep_sbatch: Keep those ``SBATCH_*`` variables that set nothing dlsubmit sets.
    """
    inside_job = "SLURM_JOB_ID" in environ or "SLURM_JOBID" in environ
    kept: dict[str, str] = {}
    ignored: list[str] = []
    for name, value in environ.items():
        if name.startswith("SBATCH_") or name in _ALSO_SBATCH_INPUT:
            if keep_sbatch and name not in _NEVER_KEPT:
                kept[name] = value
            else:
                ignored.append(name)
        elif not _is_of_a_job(name, inside_job=inside_job):
            kept[name] = value
    return Cleaned(environ=kept, ignored=tuple(sorted(ignored)))


def of_a_script(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a user's own script: sbatch's input variables count as sbatch has it."""
    inside_job = "SLURM_JOB_ID" in environ or "SLURM_JOBID" in environ
    return {k: v for k, v in environ.items() if not _is_of_a_job(k, inside_job=inside_job)}


def _is_of_a_job(name: str, *, inside_job: bool) -> bool:
    """The variable tells of the job that we run in, or of one that somebody ran in."""
    if name.startswith(_SET_ONLY_WHERE_THEY_APPLY):
        return True
    return inside_job and name.startswith(("SLURM_", "SLURMD_")) and name not in _SLURM_KEPT


SETUP = ("module", "conda", "venv", "setup")
_KIND = re.compile(r"(?:(apptainer|pyxis):(?!//))?(.*)", re.DOTALL)
_URI = re.compile(r"[a-z][a-z0-9+.-]*://", re.ASCII)
_SRUN_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSetup:
    """Steps before the job's command starts.

    Attributes:
        words: Modules, the command that prints conda's activation, a virtual environment and a file
            to source, each under the name of its option.
        inside: What starts a container, to stand before the command; empty for none.
        srun_options: What srun is told where srun starts the container; else empty.
    """

    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    inside: tuple[str, ...] = ()
    srun_options: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()  # What is missing on the host of submission

    def values(self) -> dict[str, object]:
        """Values for ``_environment.sbatch.j2``."""
        words = {name: self.words.get(name, ()) for name in SETUP}
        return {name: tuple(map(UserText, of)) for name, of in words.items()}

    def check_used(
        self, script: str, template: str, sweep: UserText | None, hints: Given = NO_HINTS
    ) -> None:
        """Raise `ConfigError` if *template* left any of this, or of the others, out of *script*."""
        parts = (*self.words.values(), self.inside, self.srun_options, sweep or ())
        exports = [f"export {name}={value}\n" for name, value in hints.variables.items()]
        if any(of not in script for of in (*map(quote, parts), *exports)):
            msg = (
                f"template {template}, or its _header, is older than --module, --conda, --venv,"
                " --setup, --container, --sweep and --hint; compare it with the installed one"
                " (--show-template)"
            )
            raise ConfigError(msg)


NO_SETUP = JobSetup()


def read_setup(given: Mapping[str, object], cwd: str, environ: Mapping[str, str]) -> JobSetup:
    """The setup that the options *given* ask for, by the names of their parameters.

    Raises:
        ConfigError: A value is wrong.
    """
    texts = {name: value for name in SETUP if isinstance(value := given.get(name), str)}
    typed = {name: clean_text(value, f"--{name}") for name, value in texts.items()}
    words: dict[str, tuple[str, ...]] = {name: (value,) for name, value in typed.items()}
    problems = []
    if "module" in typed:
        words["module"] = tuple(name.strip() for name in typed["module"].split(","))
    wrong = next((n for n, of in words.items() for w in of if not w or w.startswith("-")), None)
    if wrong:
        msg = f"--{wrong}: {shown(typed[wrong])} is not what it takes; see dlsubmit --help"
        raise ConfigError(msg)
    if "conda" in typed:
        words["conda"] = _activation(typed["conda"], cwd, environ)
    if "venv" in typed:
        words["venv"] = (path := _absolute(typed["venv"], cwd),)
        if not os.access(f"{path}/bin/python", os.X_OK):
            problems.append(f"--venv: {shown(path)} has no bin/python; correct the path")
    if "setup" in typed:
        words["setup"] = (path := _absolute(typed["setup"], cwd),)
        if not (os.access(path, os.R_OK) and Path(path).is_file()):
            problems.append(f"--setup: {shown(path)} is no file that can be read; correct the path")
    return JobSetup(words=words, problems=tuple(problems))


def in_container(
    setup: JobSetup, image: str, seen: tuple[str, str], cwd: str, environ: Mapping[str, str]
) -> JobSetup:
    """*setup* with a container for ``IMAGE``, ``apptainer:IMAGE`` or ``pyxis:IMAGE``.

    Args:
        seen: Directories that it shows: where the command starts, and that of run directories.

    Raises:
        ConfigError: The image is no name of one, or nothing here can start it.
    """
    match = _KIND.fullmatch(clean_text(image, "--container"))
    kind, name = match.groups() if match else (None, "")
    if not name or name.startswith("-") or any(mark in path for path in seen for mark in ":,"):
        msg = f"--container: {shown(image)} is no image, or ':' or ',' is in one of {shown(seen)}"
        raise ConfigError(msg)
    if setup.words.keys() & {"venv", "conda"}:
        msg = "--container: --venv and --conda have no effect inside; leave them out"
        raise ConfigError(msg)
    path = environ.get("PATH")
    here = [tool for tool in ("apptainer", "singularity") if shutil.which(tool, path=path)]
    if not (kind or here or setup.words):  # A module or a setup file may bring it.
        kind = "pyxis"
        if not _has_pyxis(path):
            msg = (
                "--container: neither apptainer nor srun --container-image (pyxis) is here; where"
                " only compute nodes have one, write apptainer:IMAGE or pyxis:IMAGE"
            )
            raise ConfigError(msg)
    problems = setup.problems
    if not _URI.match(name) and (kind != "pyxis" or name[0] in "./~"):
        name = _absolute(name, cwd)
        if not os.access(name, os.R_OK):
            problems += (f"--container: no {shown(name)}; correct it, or write docker://IMAGE",)
    if kind == "pyxis":
        mounts = ",".join(f"{path}:{path}" for path in seen)
        words = f"image={name}", f"mounts={mounts}", f"workdir={seen[0]}"
        options = tuple(f"--container-{word}" for word in words)
        return replace(setup, srun_options=options, problems=problems)
    tool = here[0] if here else "apptainer"
    binds = [word for path in seen for word in ("--bind", path)]
    inside = (tool, "exec", "--nv", *binds, "--pwd", seen[0], name)
    return replace(setup, inside=inside, problems=problems)


def _absolute(path: str, cwd: str) -> str:
    # Path.expanduser would raise for a user that there is not.
    return os.path.normpath(PurePath(cwd, os.path.expanduser(path)))  # noqa: PTH111


def _activation(name: str, cwd: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The command that prints the activation of the environment *name*, or at that path."""
    path = environ.get("PATH")
    program = (
        environ.get("CONDA_EXE")
        or shutil.which("conda", path=path)
        or environ.get("MAMBA_EXE")
        or shutil.which("micromamba", path=path)
    )
    if not program:
        msg = "--conda: no conda here; load it, or set CONDA_EXE to its path"
        raise ConfigError(msg)
    program = _absolute(clean_text(program, "CONDA_EXE"), cwd)
    name = _absolute(name, cwd) if "/" in name else name
    is_mamba = "mamba" in PurePath(program).name
    how = ("shell", "activate", "--shell", "bash") if is_mamba else ("shell.posix", "activate")
    return (program, *how, name)


def _has_pyxis(path: str | None) -> bool:
    try:
        argv = [shutil.which("srun", path=path) or "srun", "--help"]
        done = subprocess.run(argv, capture_output=True, timeout=_SRUN_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"--container-image" in done.stdout

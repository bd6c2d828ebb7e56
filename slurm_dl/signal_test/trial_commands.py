"""What is run in a trial of a script: the command here, or a submission as dlsubmit makes it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from slurm_dl.model.contract import Contract
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.model.ids import JobId
from slurm_dl.own_python import own_python
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.submit import job_environment
from slurm_dl.submit.job_comment import comment
from slurm_dl.text import safe

LEAD_S = 60
_FIRST_LINE = 200
_SHELLS = frozenset({"sh", "bash", "dash", "ksh", "zsh"})
_ARRAY_LINE = re.compile(r"^#SBATCH\s+(?:.*\s)?(?:--ar|-a)", re.MULTILINE)
_ARRAY_OPTION = re.compile(r"--ar|-a")
_SUBMIT = "import sys; from slurm_dl.cli.dlsubmit.command import main; sys.exit(main(sys.argv[1:]))"


def local_argv(
    script: Path, arguments: Sequence[str], *, launcher: str, gpus: str
) -> tuple[str, ...]:
    """The command of a trial without Slurm: what stands for the batch script's process.

    Raises:
        ConfigError: There is no such script, or it cannot be run here.
    """
    path = _readable(script)
    if path.suffix != ".py":
        return (_shell(path), str(path), *arguments)
    dlrun = own_python("-m", "slurm_dl.job.run", "--launcher", launcher, "--")
    if launcher == "torchrun":
        if not gpus.isascii() or not gpus.isdigit():
            msg = f"--gpus: {gpus!r} is no number of workers"
            raise ConfigError(msg)
        workers = ("--standalone", "--nnodes=1", f"--nproc-per-node={gpus}")
        return (*dlrun, _program("torchrun"), *workers, str(path), *arguments)
    return (*dlrun, _program("python", "python3"), str(path), *arguments)


def submit(
    script: Path,
    arguments: Sequence[str],
    *,
    contract: Contract,
    place: Path,
    gpus: str,
    launcher: str,
    more: Sequence[str],
) -> JobId:
    """Submit the script as a job of its own: a Python script by dlsubmit, another one by sbatch.

    Args:
        place: A new directory; run directory and log come there.
        more: Further options of dlsubmit or sbatch.

    Raises:
        ConfigError: The script or an option is wrong.
        ClusterError: Slurm refused it.
    """
    path = _readable(script)
    _check_single(path, more)
    if path.suffix != ".py":
        return _sbatch(path, arguments, contract=contract, place=place, more=more)
    argv = (
        *("--json", f"--gpus={gpus}", f"--launcher={launcher}", f"--grace={contract.grace_s:g}"),
        *(f"--signal={contract.signal}@{LEAD_S}", f"--requeued-by={contract.requeued_by}"),
        *(f"--run-dir={place / 'runs'}", f"--output={place / 'output.log'}", *more, "--"),
        *(() if launcher == "torchrun" else (_program("python", "python3"),)),
        *(str(path), *arguments),
    )
    done = subprocess.run(own_python("-c", _SUBMIT, *argv), capture_output=True, check=False)
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode:
        error = ConfigError if done.returncode == 2 else ClusterError  # noqa: PLR2004 - dlsubmit's
        raise error(said or f"dlsubmit failed with status {done.returncode}")
    return JobId(int(json.loads(done.stdout)["job_id"]))


def _sbatch(
    path: Path,
    arguments: Sequence[str],
    *,
    contract: Contract,
    place: Path,
    more: Sequence[str],
) -> JobId:
    environ = job_environment.clean(dict(os.environ), keep_sbatch=False).environ
    run_dir = place / "runs"
    run_dir.mkdir()
    lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines(keepends=True)
    if Path(_shell(path)).name in _SHELLS:
        # What the script itself sets comes later and wins; then --watch is needed.
        commands = (i for i, x in enumerate(lines) if x.strip() and not x.startswith("#"))
        after = next(commands, len(lines))
        lines.insert(
            after, f'export SLURM_DL_RUN_DIR={shlex.quote(str(run_dir))}/"$SLURM_JOB_ID"\n'
        )
    script = place / path.name
    script.write_text("".join(lines), encoding="utf-8", errors="surrogateescape")
    answer = Slurm(environ=environ).submit(
        *("--parsable", "--requeue", "--open-mode=append"),
        f"--comment={comment(None, contract=contract, model=None)}",
        *(f"--output={place / 'output.log'}", *more, str(script), *arguments),
        environ=environ,
    )
    if answer.job_id is None:
        raise ClusterError(safe(answer.text.decode(errors="replace"), 500))
    return JobId(answer.job_id)


def _check_single(path: Path, more: Sequence[str]) -> None:
    """Refuse an array: all of its tasks would begin."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if _ARRAY_LINE.search(text) or any(_ARRAY_OPTION.match(word) for word in more):
        msg = f"{path}: an array; test one task of it, in a copy without --array"
        raise ConfigError(msg)


def _readable(script: Path) -> Path:
    if not script.is_file():
        msg = f"{script}: no such file; a JOB is a number, as in 123 or 123_4"
        raise ConfigError(msg)
    return script.absolute()


def _shell(path: Path) -> str:
    """The interpreter that the batch script names."""
    with path.open("rb") as text:
        first = text.readline(_FIRST_LINE).decode("utf-8", "replace")
    words = first.removeprefix("#!").split()
    if not first.startswith("#!") or not words:
        msg = f"{path}: a batch script begins with #! and its shell, a Python script ends in .py"
        raise ConfigError(msg)
    return words[-1] if Path(words[0]).name != "env" else _program(words[-1])


def _program(*names: str) -> str:
    for name in names:
        found = shutil.which(name)
        if found is not None:
            return os.path.abspath(found)  # noqa: PTH100 -- a link of a virtual environment stays
    msg = f"{' or '.join(names)} is not on PATH"
    raise ConfigError(msg)

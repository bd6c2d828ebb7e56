"""Batch scripts of users as jobs, for tests without Slurm."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from slurm_dl.client_config import ClientConfig
from slurm_dl.submit.script_job import ScriptJob, compose
from slurm_dl.submit.script_templates import places
from slurm_dl.submit.user_script import ScriptRequest, read_script


def written(tmp_path: Path, text: str) -> Path:
    """The script *text* as a file."""
    path = tmp_path / "job.sh"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return path


def submitted(path: Path, *sbatch: str, **changes: object) -> ScriptJob:
    """The job of the script at *path*; *changes* are those of the request."""
    request = ScriptRequest(
        script=read_script(path),
        script_args=(),
        typed={},
        usual={},
        usual_sbatch=(),
        sbatch=sbatch,
        environ={},
        site=ClientConfig(),
        dlrun="/opt/bin/dlrun",
        cwd="/home/u",
    )
    return compose(dataclasses.replace(request, **changes), places({}))  # type: ignore[arg-type]


def arguments(job: ScriptJob) -> dict[str, str]:
    """Arguments of sbatch, the last of each."""
    return {
        name: value
        for name, _, value in (arg.removeprefix("--").partition("=") for arg in job.args)
    }

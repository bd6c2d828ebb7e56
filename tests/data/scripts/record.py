"""Write the scripts that dlsubmit makes of the cases in ``cases.json``; run it to record anew.

    python tests/data/scripts/record.py

Look at the difference before committing it: these files are what users' jobs run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from slurm_dl.cli.dlsubmit.command import options_of
from slurm_dl.cli.dlsubmit.command_job import choose_shape
from slurm_dl.submit import batch_script, job_extras, job_shape
from slurm_dl.submit.job_request import check
from slurm_dl.submit.script_templates import TemplateDirectory
from slurm_dl.submit.shell_quoting import quote

HERE = Path(__file__).parent
TEMPLATES = (TemplateDirectory(owner="checkout", directory=HERE.parents[2] / "templates"),)
PARTITION = job_shape.GpuPartition(
    name="gpu",
    nodes=tuple(job_shape.GpuNode(gpu_type="a100", gpus=4, up=True, shards=16) for _ in range(4)),
)
EXTRAS = batch_script.Extras(nccl={"NCCL_ALGO": "Tree", "NCCL_IB_HCA": "it's mlx5"})
"""What the profile that is named says."""


def cases() -> dict[str, list[str]]:
    """Command lines by name."""
    read: dict[str, list[str]] = json.loads((HERE / "cases.json").read_text())
    return read


def render(args: Sequence[str]) -> str:
    """Write sbatch's arguments as a comment line, and the script."""
    typed, line = options_of(args)
    request = check(
        typed, sbatch=line.sbatch, command=line.command, cwd="/home/ann", dlrun="/opt/dl/bin/dlrun"
    )
    extras = None if request.model is None else EXTRAS
    shape = choose_shape(request, [PARTITION])
    request = job_extras.lay_out(request, shape, [PARTITION])
    made = batch_script.compose(request, shape, TEMPLATES, extras)
    return f"# {quote(made.args)}\n{made.script}"


if __name__ == "__main__":
    for name, args in cases().items():
        (HERE / f"{name}.sbatch").write_text(render(args), encoding="utf-8")

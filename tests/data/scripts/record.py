"""Write the scripts that dlsubmit makes of the cases in ``cases.json``; run it to record anew.

    python tests/data/scripts/record.py

Look at the difference before committing it: these files are what users' jobs run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from slurm_dl.apps.submit import script, shape
from slurm_dl.apps.submit.command import choose_shape, options_of
from slurm_dl.apps.submit.quoting import quote
from slurm_dl.apps.submit.request import check
from slurm_dl.apps.submit.templates import Place

HERE = Path(__file__).parent
TEMPLATES = (Place(owner="checkout", directory=HERE.parents[2] / "templates"),)
PARTITION = shape.Partition(
    name="gpu",
    nodes=tuple(shape.GpuNode(gpu_type="a100", gpus=4, up=True, shards=16) for _ in range(4)),
)
EXTRAS = script.Extras(nccl={"NCCL_ALGO": "Tree", "NCCL_IB_HCA": "it's mlx5"})
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
    made = script.compose(request, choose_shape(request, [PARTITION]), TEMPLATES, extras)
    return f"# {quote(made.args)}\n{made.script}"


if __name__ == "__main__":
    for name, args in cases().items():
        (HERE / f"{name}.sbatch").write_text(render(args), encoding="utf-8")

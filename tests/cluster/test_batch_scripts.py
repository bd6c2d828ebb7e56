"""Batch scripts of users on a real Slurm: read as sbatch reads them, run as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurm_dl.sandbox import Sandbox
from slurm_dl.submit.user_script import read_script

pytestmark = pytest.mark.slurm

HEADS = (
    '#SBATCH -J "my job" --time=1:00 # all night',
    "#SBATCH --job-name='it\"s' --comment=a\\#c#d -t 7",
    "#SBATCH --comment=a\\ -t 7",
    "#SBATCH -t 5 \\\n#SBATCH --nice=7",
    '#SBATCH --comment="" -t 9\n#SBATCH -t 4',
    '#SBATCH --comment x "" -t 9\n#SBATCH --nice=3',
    "#SBATCH --gpus-per-nod=2 -N1 --comm=x",
    "# a comment\n\n  # another\n#SBATCH -t 5\necho x\n#SBATCH -t 9",
    " #SBATCH -t 5\n##SBATCH -t 6\n#sbatch -t 7\n#SBATCH\t-t\t8",
    "#SBATCH --nice=5 --comment\n#SBATCH two -N 2 --gres=gpu:a100:1",
    "#SBATCH --comment='a\\'b' --no-requeue --requeue -t1-2",
    "#SBATCHES -t 3\n#SBATCH-t 3",
)
_SEEN = re.compile(
    r"\b(JobName|TimeLimit|Comment|Nice|NumNodes|TresPerNode|Requeue)=(.*?)(?=\s+\w[\w:/]*=|\n|$)"
)


def job_of(box: Sandbox, argv: list[str], script: str) -> dict[str, str] | str:
    """What Slurm has of a held job; the first word of a refusal."""
    done = box.run(["sbatch", "--parsable", "--hold", *argv], stdin=script, check=False)
    if done.returncode:
        return "refused"
    shown = box.run(["scontrol", "show", "job", done.stdout.strip()]).stdout
    box.run(["scancel", done.stdout.strip()])
    return dict(_SEEN.findall(shown))


@pytest.mark.parametrize("head", HEADS)
def test_lines_mean_what_they_mean_to_sbatch(sandbox: Sandbox, tmp_path: Path, head: str) -> None:
    """What was read, given on the command line, makes the same job as the script itself."""
    path = tmp_path / "job.sh"
    path.write_text(f"#!/bin/bash\n{head}\ntrue\n")
    read = read_script(path)
    ours = [
        f"--{option.name}" if option.value is None else f"--{option.name}={option.value}"
        for option in read.options
    ]

    by_line = job_of(sandbox, [*ours, *read.unread], "#!/bin/bash\ntrue\n")
    by_script = job_of(sandbox, [], path.read_text())

    if by_script == "refused" and read.unread:
        return
    assert by_line == by_script != {}

"""The batch script that users copy from the page: on a real Slurm it opts in to preemption."""

from __future__ import annotations

import re
import shlex

import pytest
import shown

from slurm_dl.model.contract import Contract
from slurm_dl.sandbox import Sandbox
from slurm_dl.slurm.read.comment_claims import ClaimReader

PAGE = shown.ROOT / "docs" / "use" / "in-the-job.md"
(SCRIPT,) = [text for _, text in shown.fences(PAGE) if "exec dlrun" in text]
COMMENT = re.compile(r"^#SBATCH --comment=(.*)$", re.MULTILINE)


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("script", "contract", "unreadable"),
    [
        (SCRIPT, Contract(signal="USR1", grace_s=120.0), False),
        # Without its single quotes sbatch takes the double ones away too.
        (COMMENT.sub(lambda m: f"#SBATCH --comment={shlex.split(m[1])[0]}", SCRIPT), None, True),
    ],
    ids=["as it stands", "quotes lost"],
)
def test_a_copy_of_the_page_s_script_opts_in(
    sandbox: Sandbox, script: str, contract: Contract | None, *, unreadable: bool
) -> None:
    """What Slurm has of its comment is read as the contract, or said to be unreadable."""
    path = sandbox.jobs_directory / "copied.sh"
    path.write_text(script)
    job = sandbox.run(["sbatch", "--parsable", "--hold", str(path)]).stdout.strip()
    comment = sandbox.run(["squeue", "-ah", "-j", job, "-o", "%k"]).stdout.strip()
    sandbox.run(["scancel", job])

    claim = ClaimReader(max_grace_s=600.0).read(comment)

    assert (claim.contract, claim.unreadable) == (contract, unreadable), comment

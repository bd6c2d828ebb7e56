"""The tag of script and arguments in Slurm's own accounting, also of a job that was requeued."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from conftest import MakeSandbox
from schedd import Schedd, schedd_in

from slurm_dl.model.completed_jobs import Past
from slurm_dl.sandbox import Sandbox, SandboxSpec
from slurm_dl.slurm.accounting.past_jobs import PastReader
from slurm_dl.slurm.read.comment_claims import tag_in
from slurm_dl.slurm.tool_runner import Slurm

pytestmark = [pytest.mark.slurm, pytest.mark.full("starts a database")]

KEPT = ("AccountingStoreFlags=job_comment",)


def submitted(place: Schedd, script: str, seconds: str) -> str:
    """A job of this script and these arguments; all have one name."""
    path = place.home / f"{script}.sh"
    path.write_text(f"# {script}\nexec sleep $1\n", encoding="utf-8")
    return place.submit(1, "sh", str(path), seconds, options=["--name=train", "--time=10"])


@pytest.mark.parametrize("conf", [KEPT, ()], ids=["kept", "not kept"])
def test_past_jobs_have_their_tags_where_slurm_keeps_comments(
    conf: tuple[str, ...], make_sandbox: MakeSandbox, short_directory: Path
) -> None:
    """Two scripts of one name, the first twice; without the flag there are names alone."""
    box = make_sandbox(SandboxSpec(accounting=True, slurm_conf_extra=conf))
    with schedd_in(box, short_directory) as place:
        again = submitted(place, "a", "3")
        tag = tag_in(place.job(again, "Comment")[0])
        place.until_state(again, "RUNNING")
        place.box.run(["scontrol", "requeue", again])
        jobs = [again, submitted(place, "a", "3"), submitted(place, "b", "3")]
        for job in jobs:
            place.until_state(job, "COMPLETED", within_s=200)
        place.until("three jobs in the accounting", lambda: len(past(box)) == 3)
        read = past(box)
    tags = [read.tags[number] for number in read.tag]
    assert tags.count(tag) == (2 if conf else 0)
    assert len(set(tags)) == (2 if conf else 1)


def past(box: Sandbox) -> Past:
    """The jobs of the last day that are over."""
    slurm = Slurm(slurm_conf=Path(box.env["SLURM_CONF"]))
    return PastReader(slurm, days=1, clock=lambda: time.time() + 2).read()

"""One scancel that delivers a signal: when it has ended, and how."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.tool_runner import TOOLS, Slurm
from slurm_dl.slurm.write.actions import SignalDelivery

SENDS = 'echo sent >>"$(dirname "$0")/sent"; echo "scancel: Signal 10 to batch job 1_3" >&2\n'
RETRIES = 'echo "scancel: Job is in transitional state, retrying" >&2\n'
REFUSED = 'echo "scancel: error: Kill job error on job id 1_3: Invalid job id specified" >&2\n'


def delivery(directory: Path, does: str, *, timeout_s: float = 30.0) -> SignalDelivery:
    """A delivery by a scancel that *does* so."""
    for tool in TOOLS:
        path = directory / tool
        path.write_text(f"#!/bin/sh\n{does}", encoding="utf-8")
        path.chmod(0o755)
    slurm = Slurm(bin_dir=directory, timeout_s=timeout_s)
    return SignalDelivery(slurm, ["--signal=USR1", "--batch", "1_3"])


@pytest.mark.parametrize(
    ("does", "error"),
    [
        (SENDS, ""),
        ('echo "slurmctld does not answer, retrying" >&2; exit 1\n', "exit 1.*retrying"),
        (SENDS + RETRIES + "exec sleep 600\n", ""),
        (REFUSED + "exit 1\n", "exit 1.*Invalid job id"),
        ("exit 3\n", "exit 3.*no message"),
    ],
    ids=["answered", "other trouble", "retries", "refused", "silent failure"],
)
def test_it_ends_with_the_answer(tmp_path: Path, does: str, error: str) -> None:
    """A scancel that is to send the signal again is ended; slurmctld has delivered it."""
    under_way = delivery(tmp_path, does)

    if error:
        with pytest.raises(ClusterError, match=error):
            under_way.finish(30.0)
    else:
        assert under_way.finish(30.0)
        assert (tmp_path / "sent").read_text(encoding="utf-8") == "sent\n"


def test_it_is_given_up_at_its_own_deadline(tmp_path: Path) -> None:
    """Until then it can be asked about without waiting."""
    under_way = delivery(tmp_path, SENDS + "exec sleep 600\n", timeout_s=1.0)

    assert not under_way.finish(0.0)
    time.sleep(1.0)
    with pytest.raises(ClusterError, match="slurmctld did not answer in 1 s"):
        under_way.finish(0.0)

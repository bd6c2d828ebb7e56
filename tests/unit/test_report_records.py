"""Columns of finished jobs: what they hold and what they refuse."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from report_cases import life, records_of

from slurm_dl.model.completed_jobs import JobRecord, Records, Runs
from slurm_dl.model.ids import JobId


def row(job_id: int, user: str) -> JobRecord:
    return JobRecord(
        job_id=JobId(job_id), user=user, gpus=2, submit_s=10, start_s=15, end_s=40 + job_id,
        service_gpu_s=50, lost_gpu_s=3, preemptions=job_id, completed=job_id == 1,
    )  # fmt: skip


def test_rows_become_columns() -> None:
    """Users are numbered in the order in which they appear; of no row the columns are empty."""
    found = Records.of([row(1, "zoe"), row(2, "ada"), row(3, "zoe")])

    assert found.job_id == ("1", "2", "3")
    assert [found.users[u] for u in found.user] == ["zoe", "ada", "zoe"]
    assert found.users == ("zoe", "ada")
    assert found.jct_s.tolist() == [31, 32, 33]
    assert found.wait_s.tolist() == [5, 5, 5]
    assert found.running_s.tolist() == [25, 25, 25]
    assert found.success.tolist() == [True, False, False]
    assert found.preemptions.tolist() == [1, 2, 3]
    assert found.all_lost_gpu_s.tolist() == [3, 3, 3]
    assert np.isnan(found.slowdown).all()
    assert len(found.runs) == 0
    none = Records.of([])
    assert (len(none), none.users, len(none.jct_s), len(none.all_lost_gpu_s)) == (0, (), 0, 0)


def test_columns_are_of_one_length_and_stay_as_they_are() -> None:
    """A figure of one job beside that of another would be wrong without a word."""
    records = records_of([life(0, (0, 10)), life(0, (0, 20))])

    with pytest.raises(ValueError, match="records differ in length"):
        dataclasses.replace(records, alone_s=np.zeros(3))
    with pytest.raises(ValueError, match=r"lost_gpu_s\[redone\]"):
        dataclasses.replace(records, lost_gpu_s={"redone": np.zeros(1)})
    with pytest.raises(ValueError, match="runs differ in length"):
        Runs(job=np.zeros(1, np.int32), start_s=np.zeros(2), end_s=np.zeros(2), gpus=np.zeros(2))
    for column in (records.end_s, records.runs.gpus):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 5


def test_what_did_not_happen_is_not_a_number() -> None:
    """Never started, never ended: no wait, no JCT, no queueing."""
    found = records_of([life(5, alone=10)])

    for column in (found.wait_s, found.jct_s, found.queue_s, found.slowdown):
        assert math.isnan(column[0])
    assert found.running_s.tolist() == [0]
    assert found.finished.tolist() == [False]

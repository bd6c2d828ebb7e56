from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_dl.model.jobs import Held, JobState
from slurm_dl.slurm.read import grammar, vocabulary


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("PENDING", JobState.PENDING),
        ("RUNNING", JobState.RUNNING),
        ("COMPLETING", JobState.COMPLETING),
        ("OUT_OF_MEMORY", JobState.FAILED),
        ("COMPLETED", JobState.COMPLETED),
    ],
)
def test_states_are_grouped(word: str, state: JobState) -> None:
    """A scheduler cares for seven states; every way to fail is one of them."""
    assert vocabulary.job_state(word) is state


@pytest.mark.parametrize("word", ["", "running", "R", "RUNNING ", "NEWSTATE"])
def test_unknown_state_is_not_guessed(word: str) -> None:
    """A word that no known release prints makes the record unreadable."""
    with pytest.raises(ValueError, match="unknown job state"):
        vocabulary.job_state(word)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("None", Held.NO),
        ("Priority", Held.NO),
        ("Resources", Held.NO),
        ("Resources,None", Held.NO),
        ("ReqNodeNotAvail, UnavailableNodes:n4", Held.NO),
        ("ReqNodeNotAvail(Unavailable:n4)", Held.NO),
        ("ReqNodeNotAvail, Reserved for maintenance", Held.RESERVATION),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher", Held.NO),
        ("No suitable topology unit found", Held.NO),
        ("No suitable topology unit found for segment", Held.NO),
        ("Insufficient resources in topology unit", Held.NO),
        ("Required nodes do not fit topology", Held.UNAVAILABLE),
        ("Dependency", Held.DEPENDENCY),
        ("DependencyNeverSatisfied", Held.DEPENDENCY),
        ("BeginTime", Held.BEGIN_TIME),
        ("JobHeldUser", Held.USER_OR_ADMIN),
        ("JobHeldAdmin", Held.USER_OR_ADMIN),
        ("AssocGrpGRES", Held.LIMIT),
        ("AssociationJobLimit", Held.LIMIT),
        ("QOSMaxGRESPerUser", Held.LIMIT),
        ("MaxJobsPerAccount", Held.LIMIT),
        ("JobArrayTaskLimit", Held.LIMIT),
        ("PartitionTimeLimit", Held.LIMIT),
        ("PartitionNodeLimit", Held.LIMIT),
        ("Reservation", Held.RESERVATION),
        ("Licenses", Held.UNAVAILABLE),
        ("BadConstraints", Held.UNAVAILABLE),
        ("PartitionDown", Held.UNAVAILABLE),
        ("PartitionInactive", Held.UNAVAILABLE),
        ("NodeDown", Held.UNAVAILABLE),
        ("InvalidQOS", Held.UNAVAILABLE),
        ("QOSNotAllowed", Held.UNAVAILABLE),
        ("a word of the future", Held.UNAVAILABLE),
        ("", Held.UNAVAILABLE),
    ],
)
def test_reasons_are_grouped(reason: str, expected: Held) -> None:
    """Only a job that waits for resources or its turn may be preempted for."""
    assert vocabulary.held(reason) is expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1795185864", 1795185864.0),
        ("2026-11-20T14:44:24", 1795185864.0),
        ("N/A", 0.0),
        ("NONE", 0.0),
        ("Unknown", 0.0),
    ],
)
def test_times_are_epoch_seconds(text: str, seconds: float) -> None:
    """Asked for in seconds; ISO in UTC is understood where a tool ignores the wish."""
    assert vocabulary.epoch_s(text) == seconds


@pytest.mark.parametrize("text", ["yesterday", "12:00", "-1", "1.5", "٣"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """A time in another format is never read as some other time."""
    with pytest.raises(ValueError, match="time data"):
        vocabulary.epoch_s(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10:00", 600.0),
        ("1:00:00", 3600.0),
        ("2-03:04:05", 183845.0),
        ("2-3", 183600.0),
        ("90", 5400.0),
        ("UNLIMITED", float("inf")),
        ("NOT_SET", float("inf")),
        ("365-00:00:00", float("inf")),
        ("364-23:59:59", 365 * 86400.0 - 1),
    ],
)
def test_time_limits_are_seconds(text: str, seconds: float) -> None:
    """A year is what Slurm gives to a job without a limit when it starts."""
    assert vocabulary.limit_s(text) == seconds


def test_what_is_no_time_limit_is_refused() -> None:
    """An unknown word is not taken for "no limit"."""
    with pytest.raises(ValueError, match="no time limit"):
        vocabulary.limit_s("soon")


@pytest.mark.parametrize(
    ("label", "tasks", "address"),
    [
        ("123", 1, "123"),
        ("123_7", 1, "123_7"),
        ("8+1", 1, "8+1"),
        ("6_[10-100:5%2]", 19, "6_[" + ",".join(str(n) for n in range(10, 101, 5)) + "]"),
        ("6_[1-30,50]", 31, "6_[1-30,50]"),
        ("6_[0-999999]", 1_000_000, "6_[0-999999]"),
        ("6_[3%1]", 1, "6_[3]"),
    ],
)
def test_labels_give_the_number_of_tasks_and_an_address(
    label: str, tasks: int, address: str
) -> None:
    """An address names all tasks of the record one by one or in unbroken ranges."""
    assert grammar.tasks_in(label) == tasks
    assert grammar.address(label) == address


@pytest.mark.parametrize(
    "label",
    [
        *("", "x", "1 2", "1;2", "-1", "1_", "1_[]", "6_[1-3", "6_[1-3]x", "1+", "1_2_3", "1\n"),
        *("6_[1-...]", "6_[5-1]", "6_[1-9:0]", "6_[0-99999999999]", "\uff11"),
    ],
)
def test_what_is_no_label_is_refused(label: str) -> None:
    """Nothing but a job id ever gets into an argument of scontrol or scancel."""
    with pytest.raises(ValueError):  # noqa: PT011 (several messages; the point is the refusal)
        grammar.tasks_in(label)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_every_address_is_a_job_id(label: str) -> None:
    """Whatever the label is, what comes out is a plain job id or a refusal."""
    try:
        address = grammar.address(label)
    except ValueError:
        return
    assert re.fullmatch(r"[0-9]+(_[0-9]+|_\[[0-9,-]+\]|\+[0-9]+)?", address)

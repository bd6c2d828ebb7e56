"""The contract, held against the cluster in memory."""

from __future__ import annotations

import pytest
from contract.actions import ACTIONS
from contract.cases import CASES
from contract.described import unsound, wrong_in
from contract.in_memory import InMemory

from slurm_dl.model.ids import JobId


@pytest.fixture(scope="module")
def filled() -> tuple[InMemory, dict[str, str], dict[str, str]]:
    """A cluster with all that it can have of the cases, their ids, and what it refused."""
    subject = InMemory(nodes=6, hold_s=600)
    return (subject, *subject.fill())


Filled = tuple[InMemory, dict[str, str], dict[str, str]]


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if not case.not_in_memory])
def test_job_is_reported_as_it_was_submitted(filled: Filled, name: str) -> None:
    """Field by field, in one observation of them all."""
    subject, ids, _ = filled
    seen = subject.observe()

    row = seen.jobs.row_of()[JobId(int(ids[name]))]

    assert wrong_in(seen, row, CASES[name].records[""]) == []


def test_what_it_cannot_have_is_what_the_cases_say(filled: Filled) -> None:
    """No case is left out unsaid, and none is said to be impossible that is not."""
    assert set(filled[2]) == {name for name, case in CASES.items() if case.not_in_memory}


def test_nothing_contradicts_itself(filled: Filled) -> None:
    """Times, nodes and states of every job fit each other."""
    assert unsound(filled[0].observe()) == []


@pytest.mark.parametrize("name", ACTIONS)
def test_action(name: str) -> None:
    """Each action does what it must, and is refused when it must be."""
    ACTIONS[name](InMemory())

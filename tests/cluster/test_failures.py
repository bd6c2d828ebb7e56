"""Failed jobs run again by the class of their failure, on a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from schedd import Schedd, schedd_in

from slurm_dl.sandbox import Sandbox

pytestmark = pytest.mark.slurm

RETRIES = 2
USER = "echo ModuleNotFoundError: No module named nosuch >&2; exit 1"
INFRASTRUCTURE = 'echo "rank $RANDOM: NCCL error"; exit 1'
OF_THE_SITE = 'echo "ValueError: loader 7 lost its spindle"; exit 1'


@pytest.fixture
def place(sandbox: Sandbox, short_directory: Path) -> Iterator[Schedd]:
    """A daemon that retries, and a site with a row of its own."""
    rows = short_directory / "failures.yaml"
    rows.write_text('# ours\n- infrastructure: "lost its spindle"\n', encoding="utf-8")
    with schedd_in(sandbox, short_directory) as daemon:
        daemon.configure(
            failures={"retry": True, "infrastructure_retries": RETRIES},
            preemption={"enabled": False},
        )
        daemon.start()
        yield daemon


def why(place: Schedd, job: str) -> str:
    """The sentences of ``dlqueue why``."""
    return " ".join(place.ask("dlqueue", "why", job, check=False).stdout.split())


def is_held(place: Schedd, job: str) -> bool:
    """Slurm has it waiting, held."""
    return place.job(job, "JobState", "Priority") == ["PENDING", "0"]


@pytest.mark.full("three quarters of a minute; units show the rule")
def test_user_errors_are_held_and_failures_of_the_infrastructure_retried(place: Schedd) -> None:
    """A job for each class; one row of the site changes a class; the count survives a kill."""

    def bash(script: str) -> str:
        table = f"--export=ALL,SLURM_DL_FAILURE_FILE={place.home}/failures.yaml"
        return place.submit(1, "bash", "-c", script, options=["--time=5", table])

    user, broken, ours = bash(USER), bash(INFRASTRUCTURE), bash(OF_THE_SITE)
    unknown = bash("exit 3")
    after = place.box.run(
        ["sbatch", "--parsable", f"--dependency=afterok:{user}", "--output=/dev/null", "--wrap=:"]
    ).stdout.strip()
    place.until("a first retry", lambda: place.job(broken, "Restarts") == ["1"])
    place.kill()
    place.start()

    place.until("the hold", lambda: is_held(place, user), 90)
    for job in (broken, ours):
        place.until(
            f"the end of {job}",
            lambda job=job: place.job(job, "JobState", "Restarts") == ["FAILED", str(RETRIES)],
            90,
        )
    cycles = place.cycles()
    place.until("more cycles", lambda: place.cycles() > cycles + 8)
    assert [place.job(j, "Restarts")[0] for j in (user, broken, ours)] == ["2", "2", "2"]
    assert place.job(unknown, "JobState", "Restarts") == ["FAILED", "0"]
    assert place.job(after, "JobState", "Reason") == ["PENDING", "Dependency"]
    assert "the same user error for the second time" in why(place, user)
    assert "its 2 retries within 1 d are used up" in why(place, broken)
    assert "Its run" not in why(place, unknown)

    place.box.run(["scontrol", "release", user])
    place.until("its next runs", lambda: place.job(user, "Restarts") == ["4"], 90)
    assert is_held(place, user)


@pytest.mark.full("Slurm itself requeues there; half a minute")
def test_a_failed_node_counts_against_no_retries(place: Schedd) -> None:
    """Slurm itself puts the job back, however often; ``why`` says so."""
    job = place.submit(1, "sleep", "600", options=["--time=20"])
    for again in range(1, RETRIES + 2):
        place.until_state(job, "RUNNING", within_s=90)
        (node,) = place.job(job, "NodeList")
        # The next look but one began after that; an earlier one may have seen the last run.
        cycles = place.cycles()
        place.until("the daemon to see it", lambda n=cycles + 1: place.cycles() > n)
        place.box.run(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test"])
        place.until("its requeue", lambda n=str(again): place.job(job, "Restarts") == [n])
        # Refused if the node is back already (ReturnToService).
        place.box.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)

    place.until("the reason", lambda: f"Its run {RETRIES} was requeued by Slurm" in why(place, job))
    # Slurm may still list the failed jobs of another test.
    assert job not in [e.key for e in place.book() if e.kind == "failed"]
    assert place.audit(action="retry", job=int(job)) == []

"""Attempts to gain from a real Slurm: not opting in, queueing early, leaving a contract."""

from __future__ import annotations

import json

import pytest
from schedd import Schedd, running_schedd

pytestmark = [pytest.mark.slurm, pytest.mark.full("two minutes; the units show each rule")]

NODES, GPUS = 4, 4
COUNTED = {"commitment": "counted"}
STAYS = {**COUNTED, "min_quantum_s": 3600}
"""Nobody is preempted: nodes come free only as their jobs end."""

TIERS = {"parameters": {"thresholds_gpu_s": [8, 48]}}
"""A job of one node sinks into tier 1 after 2 s."""

PLAIN = {"parameters": {"thresholds_gpu_s": [3250, 7200]}}

quiet = running_schedd(preemption=STAYS, policy=PLAIN)
place = running_schedd(policy=TIERS, preemption=COUNTED)


def filled(place: Schedd) -> list[str]:
    """All nodes held by jobs that never end and have opted in."""
    never = ["--until", str(place.home / "never")]
    jobs = [place.toy(GPUS, 1, *never, options=["--grace", "5"]) for _ in range(NODES)]
    for job in jobs:
        place.until_state(job, "RUNNING")
    return jobs


def plain(place: Schedd, limit: str, *options: str) -> str:
    """A job of one node without a contract."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", "-N1", f"--gpus-per-node={GPUS}"]
    wrap = "--wrap=exec sleep 600"
    return place.box.run([*argv, f"-t{limit}", *options, wrap]).stdout.strip()


def in_turn(place: Schedd, fillers: list[str], jobs: list[str]) -> list[str]:
    """*jobs* in the order in which they start as one node after another comes free."""
    left, order = list(jobs), []

    def started() -> list[str]:
        return [job for job in left if place.state(job) == "RUNNING"]

    for filler in fillers[: len(jobs)]:
        looks = place.cycles() + 3
        place.until("the order to be written", lambda: place.cycles() >= looks)  # noqa: B023 - called at once
        place.box.run(["scancel", "--signal=KILL", filler], check=False)
        place.box.run(["scancel", filler])

        place.until("a job to start", started)
        for job in started():
            left.remove(job)
            order.append(job)
    return order


@pytest.mark.parametrize("commitment", ["counted", "ignored"])
def test_a_plain_job_waits_at_the_start_instead(quiet: Schedd, commitment: str) -> None:
    """It came first and would hold four GPUs for a week; one of a minute is no harm."""
    fillers = filled(quiet)
    quiet.configure(preemption={**STAYS, "commitment": commitment}, policy=PLAIN)
    quiet.ask("dlctl", "reload")
    week, minute = plain(quiet, "7-0"), plain(quiet, "1")
    opted_in = quiet.toy(GPUS, 1, "--until", str(quiet.home / "never"))
    if commitment == "counted":
        quiet.until(
            "its owner to be told what the choice costs",
            lambda: "672.00 GPU-hours" in quiet.ask("dlqueue", "why", week, check=False).stdout,
        )
    turns = {"counted": [minute, opted_in, week], "ignored": [week, minute, opted_in]}

    assert in_turn(quiet, fillers, [week, minute, opted_in]) == turns[commitment]


def test_who_queues_early_comes_no_sooner(quiet: Schedd) -> None:
    """Held, and behind a dependency, since before the others came; let go after they did."""
    fillers = filled(quiet)
    held = plain(quiet, "1", "--hold")
    after = plain(quiet, "1", f"--dependency=afterany:{fillers[-1]}")
    looks = quiet.cycles() + 2
    quiet.until("both to be seen", lambda: quiet.cycles() >= looks)
    honest = plain(quiet, "1")
    quiet.until("another second", lambda: quiet.cycles() >= looks + 2)
    quiet.box.run(["scontrol", "release", held])
    order = in_turn(quiet, fillers, [honest, held])
    assert order == [honest, held]

    later = plain(quiet, "1")
    assert in_turn(quiet, [fillers[-1], fillers[-2]], [later, after]) == [later, after]


@pytest.mark.parametrize(
    ("change", "gives_way"),
    [([], True), (["Comment="], True), (["Requeue=0"], False)],
    ids=["kept", "contract taken out", "Requeue=0"],
)
def test_a_contract_holds_while_the_job_runs(
    place: Schedd, change: list[str], *, gives_way: bool
) -> None:
    """All running jobs are changed; one is still preempted, or its user is told why none was."""
    jobs = filled(place)
    looks = place.cycles() + 2
    place.until("them to be seen running", lambda: place.cycles() >= looks)
    for job in jobs if change else ():
        place.box.run(["scontrol", "update", f"JobId={job}", *change])
    new = place.toy(GPUS, 1)
    if gives_way:
        place.until_state(new, "RUNNING", "COMPLETED")
        assert sum(int(place.job(job, "Restarts")[0]) for job in jobs) == 1
        return
    place.until("it to be written down", lambda: place.audit(action="book"))
    place.until(
        "the user to be told",
        lambda: (
            f"job {jobs[0]}" in place.ask("dlqueue", "why", new, check=False).stdout
            or f"job {jobs[-1]}" in place.ask("dlqueue", "why", new, check=False).stdout
        ),
    )
    looks = place.cycles() + 5
    place.until("five more looks", lambda: place.cycles() >= looks)
    assert place.state(new) == "PENDING"
    assert "Requeue=0 was set" in place.ask("dlctl", "doctor", check=False).stdout


def test_a_task_of_an_array_has_the_contract_that_the_array_waited_with(place: Schedd) -> None:
    """Each task takes it out in its first line; a task starts under a job id of its own."""
    fillers = filled(place)
    comment = json.dumps({"slurm_dl": {"v": 1, "sig": "USR1", "grace_s": 5}})
    script = "trap : USR1; scontrol update JobId=$SLURM_JOB_ID Comment=; while :; do sleep 1; done"
    argv = ["sbatch", "--parsable", "--output=/dev/null", "-N1", f"--gpus-per-node={GPUS}"]
    argv += [f"--array=1-{NODES}", f"--comment={comment}", f"--wrap={script}"]
    array = place.box.run(argv).stdout.strip()
    looks = place.cycles() + 2
    place.until("it to be seen waiting", lambda: place.cycles() >= looks)
    place.box.run(["scancel", "--signal=KILL", *fillers], check=False)
    place.box.run(["scancel", *fillers])

    def tasks(field: str) -> list[str]:
        text = place.box.run(["squeue", "-rh", "-j", array, "-O", f"{field}:|"]).stdout
        return [line.strip("| ") for line in text.splitlines()]

    place.until("all tasks to run", lambda: tasks("State") == ["RUNNING"] * NODES)
    place.until("the comments to be gone", lambda: not any("sig" in c for c in tasks("Comment")))
    new = place.toy(GPUS, 1)
    place.until_state(new, "RUNNING", "COMPLETED")
    assert sum(map(int, tasks("RestartCnt"))) == 1

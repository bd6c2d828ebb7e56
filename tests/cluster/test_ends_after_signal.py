"""Jobs that end when they are asked to save, on a real Slurm: who runs again, and who does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from schedd import BIN, Schedd, running_schedd

pytestmark = pytest.mark.slurm

CONTRACT = json.dumps({"slurm_dl": {"v": 1, "sig": "USR1", "grace_s": 30}})
FIRST = '[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 0; '
LOOP = "; while :; do sleep 0.2; done"
JOB = "$SLURM_JOB_ID"

# What the first run does when it is asked, dlrun's options if it runs under that, and its end.
CASES: dict[str, tuple[str, str | None, list[str]]] = {
    "dies of it": ("", None, ["COMPLETED", "1"]),
    "dlrun, fails": ("exit 1", "", ["COMPLETED", "1"]),
    "dlrun, has saved": ("exit 3", "--stops-with 3", ["COMPLETED", "1"]),
    "dlrun, is final": ("exit 17", "--never-requeue 17", ["FAILED", "0"]),
    "is done": ("exit 0", None, ["COMPLETED", "0"]),
    "is final": ("exit 93", None, ["FAILED", "0"]),
    "is cancelled": (f"scancel {JOB}; sleep 60", None, ["CANCELLED", "0"]),
    "opts out": (f"scontrol update JobId={JOB} Requeue=0; exit 1", None, ["FAILED", "0"]),
}


place = running_schedd(policy={"parameters": {"thresholds_gpu_s": [8, 100_000]}})
"""Whoever has had some seconds on two GPUs gives way to a new job."""


def sbatch(place: Schedd, script: str, *options: str) -> str:
    """Submit *script* by hand; the job id."""
    argv = ["sbatch", "--parsable", "--output=job-%j", "--open-mode=append", "--mem=100M"]
    argv += [f"--wrap={script}", *options]
    return place.box.run(argv, cwd=place.home).stdout.strip()


def submit(place: Schedd, name: str) -> str:
    """The job of two GPUs of that case."""
    asked, dlrun, _ = CASES[name]
    script = place.home / f"{name}.sh"
    script.write_text(FIRST + (f"trap '{asked}' USR1" if asked else ":") + LOOP)
    under = "" if dlrun is None else f"{BIN / 'dlrun'} {dlrun} -- "
    options = ("--requeue", "--nodes=1", "--gres=gpu:2", f"--comment={CONTRACT}")
    return sbatch(place, f"exec {under}bash '{script}'", *options)


def test_who_fails_because_it_was_asked_runs_again_and_nobody_else(place: Schedd) -> None:
    """What waits for it by afterok runs in the end, and both are told what happened."""
    jobs = {name: submit(place, name) for name in CASES}
    failed = {name: jobs[name] for name in ("dies of it", "dlrun, fails")}
    waits = {n: sbatch(place, "true", f"--dependency=afterok:{job}") for n, job in failed.items()}
    lost = sbatch(place, "true", f"--dependency=afterok:{jobs['is final']}")
    for job in jobs.values():
        place.until_state(job, "RUNNING")

    place.until_state(place.submit(16, "true"), "COMPLETED")

    for name, (_, _, ends) in CASES.items():
        place.until_state(jobs[name], ends[0])
        assert (name, place.job(jobs[name], "JobState", "Restarts")) == (name, ends)
    for job in waits.values():
        place.until_state(job, "COMPLETED")
    assert place.job(lost, "Reason") == ["DependencyNeverSatisfied"]
    for name, how in (("dies of it", "ended by signal 10"), ("dlrun, fails", "with status 1")):
        told = place.ask("dlqueue", "why", jobs[name]).stdout
        assert how in told
        assert "it was requeued" in told
    assert (
        "job.should_checkpoint()"
        in Path(place.job(failed["dlrun, fails"], "StdOut")[0]).read_text()
    )
    asked = [entry["job"] for entry in place.audit(action="signal")]
    assert sorted(map(str, asked)) == sorted(jobs.values())

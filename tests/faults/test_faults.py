"""A Slurm that goes away and comes back, a daemon that restarts, and one with nothing to do."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import eventually
from schedd import Schedd, schedd_in, toy_steps
from victims import sank

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

pytestmark = pytest.mark.slurm

MakeSandbox = Callable[[SandboxSpec], Sandbox]


def test_reconfigure_and_restart_of_slurmctld(place: Schedd) -> None:
    """Neither makes the daemon do anything, and work goes on after."""
    place.start()
    first = place.toy(4, 60)
    place.until_state(first, "RUNNING")
    before = len(place.audit(action="set_site_factor"))
    place.box.run(["scontrol", "reconfigure"])
    _until_saved(place, first)
    place.box.stop_daemon("slurmctld")
    place.box.start_daemon("slurmctld")
    place.until("the daemon to see the job again", lambda: "R" in _states(place), 60)

    assert not place.audit(action="signal")
    assert not place.audit(action="requeue")
    # The place it got while it waited may have been written, nothing else.
    assert len(place.audit(action="set_site_factor")) - before <= 1
    second = place.toy(1, 4)
    place.until_state(second, "COMPLETED")
    place.until_state(first, "COMPLETED")


@pytest.mark.full("slurmctld stays dead for half a minute")
def test_a_slurmctld_that_is_dead_for_half_a_minute(place: Schedd) -> None:
    """The daemon does nothing while it cannot see, and ends a hand-over under way afterwards."""
    place.start()
    big = place.toy(16, 120, "--save-s", "4", options=["--grace", "60"])
    place.until("the large job to sink", lambda: sank(place, big))
    _until_saved(place, big)
    small = place.toy(1, 4)
    place.until("the signal", lambda: place.audit(action="signal", result="ok"))
    place.box.stop_daemon("slurmctld")
    stopped_at = len(place.audit())
    eventually(_after(30), 60, what="half a minute to pass")
    # What was under way when slurmctld went may fail; nothing is claimed to have been done.
    assert all(e["result"] != "ok" for e in place.audit()[stopped_at:] if e["job"])
    place.box.start_daemon("slurmctld")

    place.until_state(small, "COMPLETED", within_s=120)
    place.until_state(big, "COMPLETED", within_s=120)
    assert toy_steps(place.home, big) == list(range(1, 121))
    assert len(place.audit(action="signal", result="ok")) == int(place.job(big, "Restarts")[0])


def _after(seconds: float) -> Callable[[], bool]:
    """A predicate that holds once *seconds* have passed: nothing else tells of it."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def _states(place: Schedd) -> str:
    return place.ask("dlqueue", check=False).stdout


def _until_saved(place: Schedd, job: str) -> None:
    """Wait until slurmctld has written down that *job* runs; it may forget it when it ends."""
    state = place.box.directory / "state" / "job_state"
    started = dt.datetime.fromisoformat(place.job(job, "StartTime")[0]).timestamp()
    place.until(
        "slurmctld to save its state",
        # Slurm's times are whole seconds.
        lambda: state.exists() and state.stat().st_mtime >= started + 1,
        60,
    )


def test_a_restarted_daemon_keeps_the_service(place: Schedd) -> None:
    """Killed and started again, the ledger equals Slurm's run time within a poll."""
    place.start()
    job = place.toy(2, 60)
    place.until_state(job, "RUNNING")
    place.until("some service", lambda: place.attained_gpu_s(job) > 4)
    had = place.attained_gpu_s(job)
    place.kill()
    place.start()
    assert place.attained_gpu_s(job) >= had
    place.until_state(job, "COMPLETED")

    def agrees() -> bool:
        h, m, s = place.job(job, "RunTime")[0].split(":")
        run_s = int(h) * 3600 + int(m) * 60 + int(s)
        return abs(place.attained_gpu_s(job) - 2 * run_s) <= 2

    place.until("the ledger to agree with Slurm", agrees, 10)


def test_a_restarted_daemon_knows_jobs_that_slurm_has_forgotten(
    make_sandbox: MakeSandbox, short_directory: Path
) -> None:
    """Tasks of an array by their names, and how they ended, out of the ledger."""
    box = make_sandbox(SandboxSpec(groups=(SandboxNodes(nodes=1),)))
    name = "e\x1b[2Jvil"
    with schedd_in(box, short_directory) as place:
        place.start()
        argv = ["sbatch", "--parsable", "--array=0-1", "-pgpu", "--gpus=1", "-o/dev/null"]
        array = box.run([*argv, f"-J{name}", "--wrap", "sleep 3; exit 3"]).stdout.strip()
        tasks = {f"{array}_0", f"{array}_1"}
        place.until("them to be seen over", lambda: _shown(place, "-tF") == tasks)
        place.kill()
        box.stop_daemon("slurmctld")
        for file in (box.directory / "state").glob("job_state*"):
            file.unlink()
        box.start_daemon("slurmctld")
        place.start()

        assert box.run(["squeue", "-h", "-tall"]).stdout == ""
        assert _shown(place, "-tall") == tasks
        said = place.ask("dlqueue", "why", f"{array}_1").stdout
        assert f"Slurm no longer lists job {array}_1 (e" in said
        assert "\x1b" not in said
        assert ": failed (NonZeroExitCode)." in said
        assert "It ran once, from " in said


def _shown(place: Schedd, *options: str) -> set[str]:
    """Jobs in dlqueue's list."""
    answer = json.loads(place.ask("dlqueue", "--json", *options).stdout)
    return {job["job"] for job in answer["jobs"]}


def test_idle_polls_cost_three_rpcs_at_most_and_write_nothing(place: Schedd) -> None:
    """Counted by slurmctld itself, over polls in which no job changes its tier."""
    place.configure(daemon={"poll_s": 1, "fast_poll_s": 0.5, "nodes_every_s": 3600})
    place.start()
    wall = place.toy(16, 2000, options=["--no-preempt"])
    for _ in range(3):
        place.toy(1, 4, options=["--no-preempt"])
    place.until("the wall to sink", lambda: sank(place, wall))
    # The job itself then says nothing for five minutes.
    place.until("the wall to tell its progress", lambda: "progress" in _comment(place, wall), 60)
    place.until("three cycles without an action", _three_idle_cycles(place))
    before = place.cycles()
    place.box.run(["sdiag", "--reset"])
    after = place.cycles()
    place.until("ten polls", lambda: place.cycles() >= after + 10, 120)
    least = place.cycles() - after
    report = place.box.run(["sdiag"]).stdout
    most = place.cycles() - before + 1

    counts = _rpcs(report)
    reads = sum(n for name, n in counts.items() if "STATS" not in name and "PING" not in name)
    assert counts["REQUEST_JOB_INFO"] >= least - 1
    assert "REQUEST_UPDATE_JOB" not in counts
    assert reads <= 3 * most, counts


def _comment(place: Schedd, job_id: int) -> str:
    return place.box.run(["squeue", "--noheader", f"--jobs={job_id}", "--format=%k"]).stdout


def _three_idle_cycles(place: Schedd) -> Callable[[], bool]:
    """A predicate that holds when three whole cycles have added nothing to the audit log."""
    entries, since = -1, 0

    def idle() -> bool:
        nonlocal entries, since
        cycles, now = place.cycles(), len(place.audit())
        if now != entries:
            entries, since = now, place.cycles()
        # The newest entry may be of the cycle after *since*, which had not ended yet.
        return cycles > since + 3

    return idle


def _rpcs(report: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    section = report.partition("Remote Procedure Call statistics by message type")[2]
    for line in section.partition("Remote Procedure Call statistics by user")[0].splitlines():
        words = line.split()
        if words and words[0].startswith(("REQUEST_", "MESSAGE_")):
            counts[words[0]] = int(line.partition("count:")[2].split()[0])
    return counts

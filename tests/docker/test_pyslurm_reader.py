"""The second reader on a real Slurm: it sees what squeue sees, writes what scontrol writes.

And the defects of pyslurm that keep the rest with Slurm's commands, each shown as it is: a pyslurm
that has mended one fails its test, and the table in docs/adr/0010-pyslurm-reader.md is to be
looked at again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from containers import Containers

from slurm_dl.slurm.releases import SERIES

pytestmark = [
    pytest.mark.docker,
    pytest.mark.full("needs containers of three releases"),
    pytest.mark.timeout(900),
]

PROGRAMS = Path(__file__).parent / "programs"
PYTHON = "/opt/slurm_dl/bin/python"
SEGFAULT = 128 + 11


def with_pyslurm(test: Any) -> Any:  # noqa: ANN401 - a test
    """Run *test* where there is a pyslurm on PyPI that belongs to the release."""
    only = pytest.mark.parametrize("cluster", ["26.05"], indirect=True)
    return pytest.mark.usefixtures("pyslurm")(only(test))


@pytest.fixture
def pyslurm(cluster: Containers) -> None:
    """The pyslurm of the image; Debian's newest Slurm may have outrun it."""
    status = cluster.run("login", "cat", "/opt/pyslurm/status").stdout
    if status.startswith("not built"):
        # On the release that it was tried on it does build.
        assert not any(str(s.tried) in status for s in SERIES if s.pyslurm), status
        pytest.skip(status)


def program(cluster: Containers, name: str, *argv: str, check: bool = True) -> Any:  # noqa: ANN401
    """What one of the programs printed on the login node, as root."""
    text = (PROGRAMS / name).read_text(encoding="utf-8")
    done = cluster.run("login", PYTHON, "-", *argv, input=text, check=check, within_s=300)
    return json.loads(done.stdout)


def submit(cluster: Containers, *argv: str) -> str:
    """Submit as alice; the job id."""
    done = cluster.run("login", "sbatch", "--parsable", "--output=/dev/null", *argv, user="alice")
    return done.stdout.strip()


def python(cluster: Containers, code: str, *, rc: int = 0) -> str:
    """What *code* prints where pyslurm is imported; it must end with *rc*."""
    code = f"from pyslurm import *\n{code}"
    done = cluster.run("login", PYTHON, "-", input=code, check=False)
    assert done.returncode == rc, done.stdout + done.stderr
    return done.stdout.strip()


def site_factor(cluster: Containers, job: str) -> int:
    """What sprio says of a pending job."""
    return int(cluster.run("login", "sprio", "-h", "-j", job, "-o", "%S").stdout.split()[0])


@pytest.fixture
def paused(cluster: Containers) -> Any:  # noqa: ANN401 - yields nothing
    """A cluster whose dlschedd does not act."""
    cluster.run("dlschedd", "dlctl", "pause", "--reason", "test")
    yield
    cluster.run("dlschedd", "dlctl", "resume")


def test_the_daemon_reads_by_pyslurm_where_there_is_one(cluster: Containers) -> None:
    """By itself, and 'dlctl status' says which reader and why; a killed worker is replaced."""

    def reader() -> Any:  # noqa: ANN401 - JSON
        said = json.loads(cluster.run("dlschedd", "dlctl", "status", "--json").stdout)
        return said["reader"] if not said["failures"] else None

    chosen = cluster.until("the daemon to have looked", reader)
    if not cluster.run("login", "cat", "/opt/pyslurm/status").stdout.startswith("built"):
        assert chosen["name"] == "cli"
        assert "pyslurm" in chosen["reason"]
        return
    assert chosen["name"] == "pyslurm", chosen

    def workers() -> list[str]:
        return cluster.run(
            "dlschedd", "pgrep", "-f", "worker_program.py", check=False
        ).stdout.split()

    (before,) = workers()
    cluster.run("dlschedd", "kill", "-KILL", before)
    cluster.until("another worker", lambda: workers() not in ([], [before]))
    assert reader()["name"] == "pyslurm"


@with_pyslurm
@pytest.mark.usefixtures("paused")
def test_both_readers_see_the_same_of_every_kind_of_job(cluster: Containers) -> None:
    """All of Observed, field by field: GPUs asked for in every way, arrays, states, names."""
    try:
        filled = program(cluster, "varied_queue.py")
        compared = program(cluster, "compare_readers.py", *filled["stubborn"], check=False)
    finally:
        cluster.run("login", "scancel", "--user=bob")
        cluster.run("login", "scancel", "--user=carol")
        cluster.run("login", "scancel", "--user=alice")
        for name in ("foreign", "slurm_dl_77"):
            cluster.until("its jobs to end", lambda name=name: _delete(cluster, name))

    assert compared["differences"] == []
    assert compared["jobs"] >= filled["submitted"]
    states = {"COMPLETED", "COMPLETING", "FAILED", "PENDING", "RUNNING", "SUSPENDED"}
    assert states <= set(compared["states"])


def _delete(cluster: Containers, name: str) -> bool:
    argv = ("scontrol", "delete", f"ReservationName={name}")
    return cluster.run("login", *argv, check=False).returncode == 0


@with_pyslurm
@pytest.mark.usefixtures("paused")
def test_site_factors_are_set_as_scontrol_sets_them(cluster: Containers) -> None:
    """The value reaches Slurm and nothing else of the job changes; others may not."""
    pending = submit(cluster, "--begin=now+3600", "--wrap", "true")
    running = submit(cluster, "--mem=1", "--wrap", "exec sleep 300")
    cluster.until("it to run", lambda: cluster.state(running) == "RUNNING")
    may_change = {"Priority", "LastSchedEval", "RunTime", "Reason"}

    for job in (pending, running):
        before = cluster.job(job)
        for value in (12_345, 2_000_000_000, -77, 5):
            _set(cluster, job, value, user="slurm_dl")
            after = cluster.job(job)
            assert {k for k in before if after[k] != before[k]} <= may_change
            cluster.run("login", "scontrol", "update", f"JobId={job}", f"SiteFactor={value}")
            assert cluster.job(job)["Priority"] == after["Priority"] != before["Priority"]
            before = after
        with pytest.raises(AssertionError, match="Access/permission denied"):
            _set(cluster, job, 9, user="alice")
    eligible = submit(cluster, "--exclusive", "-N4", "--wrap", "true")
    _set(cluster, eligible, -77, user="slurm_dl")
    assert site_factor(cluster, eligible) == -77


def _set(cluster: Containers, job: str, value: int, *, user: str) -> None:
    code = f"from pyslurm import *\nJob({job}).modify(JobSubmitDescription(site_factor={value}))"
    cluster.run("dlschedd" if user == "slurm_dl" else "login", PYTHON, "-c", code, user=user)


# The defects.


@with_pyslurm
def test_defect_import_without_configuration_ends_the_process(cluster: Containers) -> None:
    """So it is tried in a process that is thrown away."""
    code = "try:\n    import pyslurm\nexcept BaseException as err:\n    print(err)\nprint('lives')"
    argv = ("env", "SLURM_CONF=/nonexistent", PYTHON, "-c", code)
    done = cluster.run("login", *argv, check=False, within_s=120)

    assert done.returncode == 1
    assert "lives" not in done.stdout


@with_pyslurm
@pytest.mark.usefixtures("paused")
def test_defect_zero_is_not_sent(cluster: Containers) -> None:
    """So a SiteFactor of 0 is scontrol's."""
    running = submit(cluster, "--exclusive", "-N4", "--wrap", "exec sleep 300")
    cluster.until("it to run", lambda: cluster.state(running) == "RUNNING")
    blocked = submit(cluster, "--exclusive", "-N4", "--wrap", "true")
    for value in (5, 0):
        _set(cluster, blocked, value, user="slurm_dl")

    assert site_factor(cluster, blocked) == 5


@with_pyslurm
def test_defect_requests_by_job_are_lost(cluster: Containers) -> None:
    """So requests by job, task and socket are asked of squeue, once for each job."""
    job = submit(cluster, "--hold", "--gpus=a100:2", "--wrap", "true")
    told = cluster.run("login", "squeue", "-h", "-j", job, "-O", "tres-per-job:40").stdout.strip()

    assert "a100:2" in told
    assert python(cluster, f"print(Job.load({job}).tres_per_job)") == "None"


@with_pyslurm
def test_defect_the_layout_by_node_crashes(cluster: Containers) -> None:
    """So how GPUs lie on several nodes is asked of scontrol."""
    job = submit(cluster, "--mem=1", "--gpus=3", "-N2", "--wrap", "exec sleep 300")
    cluster.until("it to run", lambda: cluster.state(job) == "RUNNING")

    python(cluster, f"Job.load({job}).get_resource_layout_per_node()", rc=SEGFAULT)


@with_pyslurm
def test_defect_task_0_has_no_number(cluster: Containers) -> None:
    """So a record of an array that waits for nothing and has no number is its task 0."""
    array = submit(cluster, "--mem=1", "--array=0-1", "--wrap", "exec sleep 300")
    cluster.until("it to run", lambda: cluster.state(f"{array}_0") == "RUNNING")
    said = python(
        cluster,
        "jobs = Jobs.load().values()\n"
        f"print([j.array_task_id for j in jobs if j.array_id == {array}])",
    )

    assert sorted(said.strip("[]").split(", ")) == ["1", "None"]


@with_pyslurm
@pytest.mark.usefixtures("paused")
def test_defect_requeue_runs_a_job_again_that_has_completed(cluster: Containers) -> None:
    """So requeues are scontrol's, which can be told to leave alone what has completed."""
    job = submit(cluster, "--mem=1", "--wrap", "true")
    cluster.until("it to end", lambda: cluster.state(job) == "COMPLETED")
    cluster.run("login", "scontrol", "requeue", "Incomplete", job, check=False)
    assert cluster.state(job) == "COMPLETED"

    python(cluster, f"Job({job}).requeue()")

    assert cluster.state(job) == "PENDING"


@with_pyslurm
def test_defect_a_signal_that_reached_nobody_is_not_told(cluster: Containers) -> None:
    """So signals are scancel's."""
    job = submit(cluster, "--mem=1", "--wrap", "true")
    cluster.until("it to end", lambda: cluster.state(job) == "COMPLETED")

    assert cluster.run("login", "scancel", "--signal=USR1", job, check=False).returncode != 0
    assert python(cluster, f"print(Job({job}).send_signal('SIGUSR1'))") == "None"


@with_pyslurm
def test_defect_user_hold_crashes(cluster: Containers) -> None:
    """Nothing here holds jobs; nobody should begin to with this."""
    job = submit(cluster, "--begin=now+3600", "--wrap", "true")

    python(cluster, f"Job({job}).hold(mode='user')", rc=SEGFAULT)


@with_pyslurm
def test_defect_site_factor_and_limits_are_not_told_apart(cluster: Containers) -> None:
    """SiteFactors are read by sprio; no limit and none set are one, and mean the same to us."""
    job = submit(cluster, "--hold", "--time=UNLIMITED", "--wrap", "true")

    said = python(cluster, f"j = Job.load({job})\nprint(hasattr(j, 'site_factor'), j.time_limit)")

    assert said == "False None"

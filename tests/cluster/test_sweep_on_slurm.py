"""dlsim compare as an array of a real Slurm: the same figures, and what becomes of failures."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE

from slurm_dl.sandbox import Sandbox

pytestmark = [pytest.mark.slurm, pytest.mark.full("a sweep of simulations as an array job")]

Eventually = Callable[..., object]

INTERRUPTIBLE = """
import signal
from slurm_dl.cli.dlsim.command import main
# Tests that run in the background of a shell have it ignored, and would pass that on.
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""

DLSIM = str(Path(sys.executable).parent / "dlsim")
SIXTY = Path(__file__).parents[2] / "traces" / "tiresias" / "60_job.csv"
ODD = "a b'c %j $(touch x)"
"""A folder's name that a shell, and Slurm's patterns, would read otherwise."""


MINE = """
from pathlib import Path

from slurm_dl.model.errors import ConfigError
from slurm_dl.policies.shortest import Srtf


class Mine(Srtf):
    def order(self, snap):
        if Path({flag!r}).exists():
            raise ConfigError("the flag is up")
        return Srtf.order(self, snap)
"""


class Desk:
    """Somebody with a trace and a Slurm cluster."""

    def __init__(self, box: Sandbox, directory: Path) -> None:
        self.box = box
        self.directory = directory
        self.folder = directory / ODD
        self.costs = directory / "costs.yaml"

    def compare(self, *args: object) -> subprocess.CompletedProcess[str]:
        """Run dlsim compare in the directory."""
        argv = [DLSIM, "compare", *map(str, args)]
        return self.box.run(
            argv, 80.0, cwd=self.directory, env={"PATH": "/usr/bin:/bin"}, check=False
        )

    def on_slurm(self, *args: object) -> subprocess.CompletedProcess[str]:
        """The same, on the cluster."""
        return self.compare("--on", "slurm", "--dir", self.folder, *args)

    def interrupted(self, *args: object, eventually: Eventually) -> tuple[int, str]:
        """Start it on the cluster, and press Ctrl-C once it is submitted; status and words."""
        words = ["compare", "--on", "slurm", "--dir", self.folder, *args]
        process = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTIBLE, *map(str, words)],
            env={"PATH": "/usr/bin:/bin", **self.box.env},
            cwd=self.directory,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            eventually((self.folder / "jobs.json").exists, 30.0, what="the array")
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=30 * PATIENCE)
        finally:
            process.kill()
            process.wait()
        return process.returncode, said

    def figures(self, name: str) -> Any:  # noqa: ANN401 - whatever JSON holds
        """What --json wrote, without what differs from run to run."""
        whole = json.loads((self.directory / name).read_text("utf-8"))
        for told, key in ((whole["manifest"], "command"), (whole["manifest"], "date")):
            del told[key]
        for cell in whole["cells"]:
            del cell["wall_s"]
        return whole

    def results(self) -> dict[str, float]:
        """When each result was written, by its file."""
        return {p.name: p.stat().st_mtime for p in (self.folder / "cells").iterdir()}

    def jobs(self) -> list[int]:
        """The arrays that were submitted."""
        ids: list[int] = json.loads((self.folder / "jobs.json").read_text("utf-8"))
        return ids

    def partition(self, state: str) -> None:
        """Let the partition start jobs, or not."""
        name = self.box.spec.partitions[0].name
        self.box.run(["scontrol", "update", f"PartitionName={name}", f"State={state}"])


@pytest.fixture
def desk(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    directory: Path = sandbox.jobs_directory / tmp_path_factory.mktemp("sweep").name
    directory.mkdir()
    return Desk(sandbox, directory)


def test_a_sweep_on_slurm_is_the_sweep_here(desk: Desk) -> None:
    """One array of one-CPU jobs without GPUs; the same figures and the same words.

    Then with results lost: only those are computed again; what fails is told with its log, and
    can be mended.
    """
    desk.costs.write_text("restart_s: 30\n", "utf-8")
    flag, mine = desk.directory / "flag", desk.directory / "mine.py"
    mine.write_text(MINE.format(flag=str(flag)), "utf-8")
    sweep = [SIXTY, "--cluster", "2x4", "--policies", f"fifo,{mine}:Mine,discrete_las:voda"]
    sweep += ["--loads", "1,2", "--costs", desk.costs]

    there = desk.on_slurm(*sweep, "--array-limit", "4", "--json", "there.json")
    here = desk.compare(*sweep, "--json", "here.json")

    assert there.returncode == here.returncode == 0, there.stderr + here.stderr
    assert there.stdout == here.stdout
    assert desk.figures("there.json") == desk.figures("here.json")
    (job,) = desk.jobs()
    assert f"job array {job}: 6 tasks for 6 simulations" in there.stderr
    record = desk.box.run(["scontrol", "-o", "show", "job", f"{job}_0"]).stdout
    assert "ArrayTaskThrottle=4" in record
    assert "NumCPUs=1 " in record
    assert "gres" not in record.lower()
    assert not list(desk.directory.glob("**/x"))

    written = desk.results()
    lost = [name for name in written if name.startswith("mine.py")]
    assert len(lost) == 4
    for name in lost:
        (desk.folder / "cells" / name).unlink()
    flag.touch()
    failed = desk.on_slurm("--resume")

    assert (failed.returncode, failed.stdout) == (1, "")
    assert "2 of 6 simulations have no result:" in failed.stderr
    for task, load in ((1, 1), (4, 2)):
        log = desk.folder / "logs" / f"task-{task}.log"
        line = next(one for one in failed.stderr.splitlines() if f"task {task} " in one)
        cell = f"costs {desk.costs}, mine.py:Mine, load {load}, resample 0"
        assert f"({cell}): log {log}: dlsim sweep-cell: {cell}: " in line
        assert "the flag is up" in line
        assert "the flag is up" in log.read_text("utf-8")

    flag.unlink()
    mended = desk.on_slurm("--resume", "--json", "mended.json")

    assert mended.returncode == 0, mended.stderr
    assert mended.stdout == here.stdout
    assert desk.figures("mended.json") == desk.figures("here.json")
    again = desk.results()
    assert {name for name in again if again[name] != written[name]} == set(lost)
    assert len(desk.jobs()) == 3
    assert desk.on_slurm("--resume").stdout == here.stdout
    assert len(desk.jobs()) == 3


def test_a_sweep_that_waits_is_gathered_later(desk: Desk, eventually: Eventually) -> None:
    """Late or interrupted: status 1, the array goes on; nothing in the queue is submitted again."""
    desk.partition("DOWN")
    sweep = [SIXTY, "--cluster", "2x4", "--policies", "fifo,srtf"]

    stopped, said = desk.interrupted(*sweep, eventually=eventually)
    late = desk.on_slurm("--resume", "--within", "1")
    still = desk.on_slurm("--resume", "--within", "1")
    desk.partition("UP")
    done = desk.on_slurm("--resume")

    (job,) = desk.jobs()
    assert stopped == 1
    assert f"the array goes on: 'scancel {job}' ends it, --dir and --resume gather it" in said
    assert (late.returncode, still.returncode) == (1, 1)
    assert "2 of 2 results are not there after 1 s; the array goes on" in late.stderr
    assert "2 tasks in the queue already; nothing more is submitted" in still.stderr
    assert done.returncode == 0, done.stderr
    assert done.stdout == desk.compare(*sweep).stdout


def test_what_sbatch_refuses_is_passed_on(desk: Desk) -> None:
    """Slurm's own words, status 1; the folder can be gone on with."""
    sweep = [SIXTY, "--cluster", "2x4", "--policies", "fifo"]

    refused = desk.on_slurm(*sweep, "--partition", "nowhere")

    assert refused.returncode == 1
    assert "sbatch refused the array and said: " in refused.stderr
    assert "invalid partition" in refused.stderr
    assert desk.on_slurm("--resume").returncode == 0

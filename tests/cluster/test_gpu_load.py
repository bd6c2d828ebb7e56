"""dlrun's samples on a real Slurm: from two jobs on one GPU to a profile. NVML is a file."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_dl.model.profile import Profile
from slurm_dl.profiles.learning import find, with_load, with_pairs
from slurm_dl.profiles.run_reports import read_reports
from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

pytestmark = [pytest.mark.slurm, pytest.mark.full("two jobs run beside each other for a minute")]

BIN = Path(sys.executable).parent
FAKE = Path(__file__).parents[1] / "fake_nvml"

DLRUN = """
import os, sys
sys.path.insert(0, {fake!r})
os.environ["FAKE_NVML"] = {gpus!r}
from slurm_dl.job import comment_report, gpu_load, run
gpu_load.WINDOW_S, gpu_load.SAMPLE_EVERY_S, comment_report.LOOK_S = 3.0, 0.2, 1.0
sys.exit(run.main())
"""
"""dlrun with windows of three seconds."""

TRAIN = """
import os, sys, time
from pathlib import Path
from slurm_dl import job
Path(sys.argv[1]).write_text(str(os.getpid()))
for step in range(100_000):
    job.report(step)
    time.sleep(0.05 if not Path(sys.argv[2]).exists() else 0.1)
"""


def test_two_jobs_on_one_gpu_become_a_profile(
    make_sandbox: Callable[..., Sandbox], tmp_path_factory: pytest.TempPathFactory,
    eventually: Callable[..., object],
) -> None:  # fmt: skip
    """A job's load and rate alone, then half as fast beside another one; `use` in the comment."""
    box = make_sandbox(SandboxSpec(groups=(SandboxNodes(nodes=1, gpus=1, shards=4, cpus=8),)))
    desk = box.jobs_directory / tmp_path_factory.mktemp("desk").name
    desk.mkdir()
    gpus, slow = desk / "gpus.json", desk / "slow"

    def on_gpu(busy: int, **megabytes: int) -> None:
        gpu = {"uuid": "GPU-1", "busy": busy, "memory": 5, "mb": 40_000, "sm": 20}
        pids = {(desk / f"pid-{name}").read_text(): mb for name, mb in megabytes.items()}
        gpus.with_suffix(".new").write_text(json.dumps({"gpus": [{**gpu, "processes": pids}]}))
        gpus.with_suffix(".new").replace(gpus)

    dlrun, train = desk / "dlrun", desk / "train.py"
    program = DLRUN.format(fake=str(FAKE), gpus=str(gpus))
    dlrun.write_text(f'#!/bin/sh\nexec {sys.executable} -c {shlex.quote(program)} "$@"\n')
    dlrun.chmod(0o755)
    train.write_text(TRAIN)

    def submit(name: str, *options: str) -> str:
        argv = [str(BIN / "dlsubmit"), "--share", f"--dlrun={dlrun}", "--parsable", *options]
        command = ["--", sys.executable, str(train), f"pid-{name}", str(slow)]
        told = box.run([*argv, *command], cwd=desk, env={"PATH": "/usr/bin:/bin"}).stdout.strip()
        eventually((desk / f"pid-{name}").exists, 60, what=f"job {name} to run")
        return told

    def ours(job: str) -> dict[str, object]:
        said = box.run(["squeue", "-h", "-j", job, "-O", "Comment:600"]).stdout
        found: dict[str, object] = json.loads(said)["slurm_dl"]
        return found

    on_gpu(0)
    first = submit("a", "--cpus-per-gpu=2")
    on_gpu(40, a=900)
    eventually(lambda: ours(first).get("use") == [40, 900], 90, what="the use in the comment")
    tag = ours(first)["model"]
    place = desk / "slurm_dl_runs" / first
    names = {tag} if isinstance(tag, str) else set()

    def windows(of: Path, *, alone: bool) -> int:
        loads = read_reports(of, None).loads
        return sum(w.alone == alone and w.rate is not None for run in loads for w in run.windows)

    eventually(lambda: windows(place, alone=True) >= 5, 60, what="windows alone")
    second = submit("b", "--model=resnet18")
    slow.touch()
    on_gpu(90, a=1000, b=500)
    other = desk / "slurm_dl_runs" / second
    for each in (place, other):
        eventually(lambda each=each: windows(each, alone=False) >= 6, 90, what="shared windows")
    box.run(["scancel", first, second])

    loads = [run for of in (place, other) for run in read_reports(of, names).loads] * 3
    found = find(loads, Profile(name="m"), names=names)
    load = with_load(Profile(name="m").load, found)
    assert (load.gpu_util, load.memory_util, load.sm_active) == (0.4, 0.05, 0.2)
    assert load.gpu_mem_mb == 1000
    (beside,) = with_pairs((), found.beside)
    assert (beside.other, beside.mode) == ("resnet18", "slices")
    assert beside.rate == pytest.approx(0.5, abs=0.15)
    (speed,) = read_reports(place, names).speeds
    assert 10 < speed.steps_per_s <= 20

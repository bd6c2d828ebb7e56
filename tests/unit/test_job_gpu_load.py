"""Samples of a job's GPUs by dlrun, with an NVML that reads a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from comment_keeper import RUN, CommentKeeper

from slurm_dl.job.comment_report import CommentReport
from slurm_dl.job.gpu_load import KEPT_SPANS, KEPT_WINDOWS, LOAD_FILE, GpuLoad
from slurm_dl.job.gpu_source import GpuSource, named_in
from slurm_dl.job.run_files import PROGRESS_FILE

FAKE = Path(__file__).parents[1] / "fake_nvml"
FOREIGN = "1"
"""A process of the host that is neither dlrun's nor of its job."""


class Gpus:
    """The GPUs of a node, and dlrun's samples of them."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        self.file = place / "gpus.json"
        self.said: list[str] = []
        self.now_s = 1000.0
        self.environ = {"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
        monkeypatch.setenv("FAKE_NVML", str(self.file))
        monkeypatch.setattr("slurm_dl.job.gpu_load.time.time", lambda: self.now_s + 5e8)
        self.gpu: dict[str, object] = {"uuid": "GPU-1", "busy": 40, "memory": 10, "sm": 20}
        self.tell(mb=40_000, processes={"self": 900})

    def tell(self, **changes: object) -> None:
        """The first GPU from now on."""
        self.gpu |= changes
        other = {**self.gpu, "uuid": "GPU-2", "busy": 80, "processes": {"self": 100}}
        self.file.write_text(json.dumps({"gpus": [self.gpu, other]}))

    def load(self) -> GpuLoad:
        """Of a command that starts now."""
        load = GpuLoad(self.place, self.environ, self.said.append)
        load.start(self.now_s, self.now_s + 5e8)
        return load

    def report(self, step: int, **more: object) -> None:
        """Write what the script's side would write now."""
        content = {"restart": RUN.restart, "step": step, "time_s": self.now_s + 5e8, **more}
        (self.place / PROGRESS_FILE).write_text(json.dumps(content))

    def wait(self, load: GpuLoad, seconds: float) -> None:
        """Time passes; dlrun looks when it is due."""
        until_s = self.now_s + seconds
        while self.now_s + load.due_in_s(self.now_s) <= until_s:
            self.now_s += max(load.due_in_s(self.now_s), 0.01)
            load.look(RUN, self.now_s)
        self.now_s = until_s

    def run(self) -> dict[str, object]:
        """The last run in the file."""
        found: dict[str, object] = json.loads((self.place / LOAD_FILE).read_text())["runs"][-1]
        return found

    def windows(self) -> list[list[float]]:
        """Those of the last run."""
        windows = self.run()["windows"]
        assert isinstance(windows, list)
        return windows


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    """GPUs by the fake NVML, which is gone afterwards."""
    monkeypatch.syspath_prepend(str(FAKE))
    sys.modules.pop("pynvml", None)
    yield Gpus(tmp_path, monkeypatch)
    open_samples = sys.modules["pynvml"].SAMPLES["open"] if "pynvml" in sys.modules else 0
    sys.modules.pop("pynvml", None)
    assert open_samples <= 2, "GPM samples are not freed"


def test_a_window_tells_medians_and_the_most_memory(gpus: Gpus) -> None:
    """The busy share's median over 30 s; of the memory nearly the largest; rate by the reports."""
    load = gpus.load()
    gpus.report(0)
    for second in range(34):
        gpus.tell(busy=40 if second % 3 else 100, processes={"self": 900 + second})
        gpus.wait(load, 1.0)
        gpus.report(2 * second)

    (window,) = gpus.windows()
    start_s, seconds, alone, busy, memory_busy, sm, mb, samples, clock, power, rate = window
    assert start_s == pytest.approx(gpus.now_s + 5e8 - 33, abs=2)
    assert (seconds, alone, busy, memory_busy, sm) == (30.0, True, 0.4, 0.1, 0.2)
    assert mb == pytest.approx(930, abs=1.5)
    assert (samples, clock, power) == (31, 1000, 100)
    assert rate == pytest.approx(2.0, rel=0.1)
    run = gpus.run()
    assert (run["node"], run["devices"], run["device_mb"]) == ("n1", ["GPU-1"], 40000)
    assert (run["mode"], run["shared"], run["memory_mb"]) == ("slices", [], None)


def test_windows_begin_with_the_first_report_or_after_a_minute(gpus: Gpus) -> None:
    """Importing is not training: also where it takes longer than a minute."""
    gpus.tell(busy=1)
    load = gpus.load()
    gpus.wait(load, 89)
    assert not (gpus.place / LOAD_FILE).exists()
    gpus.wait(load, 3)
    assert [w[3] for w in gpus.windows()] == [0.01]

    gpus.report(5)
    gpus.tell(busy=70)
    gpus.wait(load, 32)
    assert [w[3] for w in gpus.windows()] == [0.7]


def test_one_moment_with_a_process_of_another_job_makes_a_window_shared(gpus: Gpus) -> None:
    """And the stretch of time beside it is kept, for the speeds in the other file."""
    load = gpus.load()
    gpus.report(0)
    gpus.wait(load, 40)
    gpus.tell(processes={"self": 900, FOREIGN: 500})
    gpus.wait(load, 1)
    gpus.tell(processes={"self": 900})
    gpus.wait(load, 60)

    assert [w[2] for w in gpus.windows()] == [True, False, True]
    assert all(w[6] == 900 for w in gpus.windows()), "the other's memory is not ours"
    shared = gpus.run()["shared"]
    start_s, seconds = gpus.windows()[1][:2]
    assert shared == [[start_s, start_s + seconds]]


def test_processes_that_srun_started_for_the_job_are_its_own(gpus: Gpus) -> None:
    """They are no descendants of dlrun, but have its job's number; another job's has not."""
    for job, is_shared in (("7", False), ("8", True)):
        # Through a shell that ends, so that it is nobody's child.
        command = "sleep 60 >/dev/null 2>&1 & echo $!"
        environ = {**os.environ, "SLURM_JOB_ID": job}
        told = subprocess.run(["/bin/sh", "-c", command], env=environ, stdout=-1, check=True).stdout
        pid = int(told)
        try:
            gpus.tell(processes={pid: 300})
            sample = GpuSource(gpus.environ).sample()
        finally:
            os.kill(pid, 9)
        assert (sample.is_shared, sample.own_mb) == (is_shared, 0 if is_shared else 300)


@pytest.mark.parametrize(
    ("processes", "is_shared", "own_mb"),
    [
        ({}, False, 0),
        ({"self": 900}, False, 900),
        ({"self": None}, False, None),
        # Numbers of another pid namespace: one is taken for the job's, of two one may be another's.
        ({"4194999": 900}, False, None),
        ({"4194999": 900, "4194998": 900}, True, None),
        ({"self": 900, "4194998": 900}, True, 900),
    ],
)
def test_whose_processes_are_on_the_gpu(
    gpus: Gpus, processes: dict[str, float | None], *, is_shared: bool, own_mb: float | None
) -> None:
    """Own memory is known only if the job's processes are; any other process is another job's."""
    gpus.tell(processes=processes)

    sample = GpuSource(gpus.environ).sample()

    assert (sample.is_shared, sample.own_mb) == (is_shared, own_mb)


def test_several_gpus_are_averaged_and_the_fullest_counts(gpus: Gpus) -> None:
    gpus.environ["CUDA_VISIBLE_DEVICES"] = "0,GPU-2"
    source = GpuSource(gpus.environ)
    assert source.sample().sm_active is None, "there is no sample before the first"
    sample = source.sample()

    assert (sample.busy, sample.own_mb, sample.sm_active) == (pytest.approx(0.6), 900, 0.2)
    assert source.devices == ["GPU-1", "GPU-2"]
    source.close()


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({}, []),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "2,3"}, ["0", "1"]),
        ({"SLURM_JOB_GPUS": "2,3"}, ["2", "3"]),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles", "SLURM_JOB_GPUS": "0"}, []),
        ({"CUDA_VISIBLE_DEVICES": "MIG-GPU-1/7/0", "SLURM_JOB_GPUS": "0"}, []),
        ({"CUDA_VISIBLE_DEVICES": "0;1"}, []),
    ],
)
def test_which_gpus_are_the_jobs(variables: dict[str, str], names: list[str]) -> None:
    assert named_in(variables) == names


@pytest.mark.parametrize("first", [True, False])
def test_an_error_of_nvml_ends_the_sampling_with_one_line(gpus: Gpus, *, first: bool) -> None:
    load = gpus.load()
    if not first:
        gpus.wait(load, 100)
    gpus.file.write_text('{"error": "GPU is lost"}')
    gpus.wait(load, 300)

    assert gpus.said == ["the GPUs are not sampled: GPU is lost"]
    assert load.due_in_s(gpus.now_s) == float("inf")


def test_without_the_package_or_a_gpu_nothing_is_said(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    without_package = gpus.load()
    gpus.wait(without_package, 100)
    monkeypatch.delitem(sys.modules, "pynvml")
    gpus.environ = {}
    without_gpu = gpus.load()
    gpus.wait(without_gpu, 100)

    assert (gpus.said, [*gpus.place.glob("slurm_dl.*")]) == ([], [])
    assert without_package.due_in_s(0) == without_gpu.due_in_s(0) == float("inf")


def test_the_file_stays_small_however_long_and_mixed_a_run_is(gpus: Gpus) -> None:
    """Every second window goes when there are too many; of the stretches the last are kept."""
    load = gpus.load()
    gpus.report(0)
    gpus.wait(load, 2)
    for turn in range(150):
        gpus.tell(processes={"self": 900} if turn % 2 else {"self": 900, FOREIGN: 1})
        gpus.wait(load, 60)

    run = gpus.run()
    assert KEPT_WINDOWS / 2 <= len(gpus.windows()) <= KEPT_WINDOWS
    assert isinstance(run["shared"], list)
    assert len(run["shared"]) == KEPT_SPANS
    assert (gpus.place / LOAD_FILE).stat().st_size < 20_000


def test_each_start_of_the_command_is_a_run_of_its_own(gpus: Gpus) -> None:
    """Windows of an attempt before are kept as its own."""
    load = gpus.load()
    gpus.wait(load, 100)
    load.start(gpus.now_s, gpus.now_s + 5e8)
    for _ in range(100):
        gpus.now_s += 1
        load.look(RUN._replace(attempt=1), gpus.now_s)

    runs = json.loads((gpus.place / LOAD_FILE).read_text())["runs"]
    assert [(run["attempt"], len(run["windows"])) for run in runs] == [(0, 1), (1, 1)]


def test_the_scripts_own_memory_is_passed_on(gpus: Gpus) -> None:
    load = gpus.load()
    gpus.report(0, memory_mb=[100.0, 800.0])
    gpus.wait(load, 40)
    assert gpus.run()["memory_mb"] == [100.0, 800.0]
    gpus.report(0, memory_mb=[200.0, "x"])
    gpus.wait(load, 40)
    gpus.report(0, memory_mb=[300.0, 700.0])
    gpus.wait(load, 40)
    assert gpus.run()["memory_mb"] == [300.0, 800.0]


def test_the_scheduler_is_told_after_two_windows_alone_and_when_they_grow(gpus: Gpus) -> None:
    """A shared window does not count: the other job is in its figures. Less is no news."""
    slurm = CommentKeeper()
    load = gpus.load()
    report = CommentReport(load.kind, gpus.place, slurm, every_s=300, log=gpus.said.append)

    def told(seconds: float) -> object:
        for _ in range(round(seconds)):
            gpus.wait(load, 1)
            report.look(RUN, gpus.now_s)
        return json.loads(slurm.comment)["slurm_dl"].get("use")

    gpus.report(0)
    gpus.tell(processes={}, busy=0)
    assert told(100) is None, "nothing of it is on the GPU yet"
    gpus.tell(processes={"self": 900}, busy=40)
    assert told(33) is None
    gpus.tell(processes={"self": 20_000, FOREIGN: 500}, busy=100)
    assert told(30) is None
    gpus.tell(processes={"self": 1000.3}, busy=37)
    assert told(31 + 30 + 16) == [39, 1001]
    gpus.tell(processes={"self": 500}, busy=10)
    assert told(400) == [39, 1001]
    gpus.tell(processes={"self": 30_000}, busy=20)
    assert told(400) == [20, 30_000]
    assert slurm.updates == 3, "the memory grew one window before the median of the busy shares"


def test_memory_that_nvml_does_not_tell_is_never_told_as_none_used(gpus: Gpus) -> None:
    """Not even if it is told now and then: the most may have been in between."""
    load = gpus.load()
    for second in range(200):
        gpus.tell(processes={"self": 900 if second % 20 else None})
        gpus.wait(load, 1)

    assert [w[6] for w in gpus.windows()] == [None] * 4
    assert load.kind.read(gpus.place, RUN) is None
    assert len(gpus.said) == 1


def test_dlrun_samples_a_real_command_at_little_cost(gpus: Gpus, tmp_path: Path) -> None:
    """From the command line to the file's windows; less than 5 ms of dlrun's CPU a sample."""
    script = f"""
import sys, time
sys.path.insert(0, {str(FAKE)!r})
from slurm_dl.job import gpu_load, run
gpu_load.START_S, gpu_load.WINDOW_S, gpu_load.SAMPLE_EVERY_S = 0.1, 0.4, 0.02
code = run.main(["--", "sleep", "2"])
print(time.process_time())
sys.exit(code)
"""
    gpus.tell()
    own = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "CUDA_"))}
    cpu_s = []
    for sample in ("no", "yes"):
        run_dir = tmp_path / sample
        environ = {**own, "SLURM_DL_RUN_DIR": str(run_dir), "SLURM_DL_SAMPLE": sample}
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**environ, "CUDA_VISIBLE_DEVICES": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        cpu_s.append(float(done.stdout))
    (run,) = json.loads((tmp_path / "yes" / LOAD_FILE).read_text())["runs"]
    samples = sum(window[7] for window in run["windows"])
    assert not (tmp_path / "no" / LOAD_FILE).exists()
    assert all(window[2] and window[6] == 900 for window in run["windows"])
    assert samples >= 20
    assert cpu_s[1] - cpu_s[0] < 0.005 * samples, (cpu_s, samples)

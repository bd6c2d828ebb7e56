"""job.loop: what it goes over, when it saves, how it stops, what it resumes from."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_dl import job
from slurm_dl.job import checkpoint, progress, run_files, step_loop


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory; nothing is left of other tests, and no time is waited for."""
    for name in [*os.environ]:
        if name.startswith(("SLURM_", "PMI_", "OMPI_")) or name == "RANK":
            monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_DL_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(step_loop, "_begun", [])
    monkeypatch.setattr(checkpoint, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(progress, "_throttle", progress._Throttle())
    monkeypatch.setattr(checkpoint._Watch, "_catch", lambda *_: None)
    return tmp_path


class Training:
    """Steps taken and paths saved, and one process of the job for each `run`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        self.state: list[int] = []
        self.paths: list[str] = []
        self.restart = -1

    def save(self, path: Path) -> None:
        """Write all of it."""
        path.write_text(json.dumps(self.state))
        self.paths.append(path.stem)  # without .part

    def load(self, path: Path) -> None:
        """Be where it was written."""
        self.state = json.loads(path.read_text())

    def run(self, steps: range, *, ask_at: int | None = None, **options: float) -> bool:
        """Train in a new process, asked to stop during the step *ask_at*; true if it stopped."""
        self.restart += 1
        self.patch.setenv("SLURM_DL_RESTART_COUNT", str(self.restart))
        self.patch.setattr(checkpoint, "_watch", checkpoint._Watch())
        self.patch.setattr(step_loop, "_begun", [])
        self.state = []
        try:
            for step in job.loop(steps, save=self.save, load=self.load, **options):
                self.state.append(step)
                if step == ask_at:
                    directory = job.run_dir()
                    assert directory is not None
                    run = run_files.RunId(self.restart, 0)
                    run_files.write_mark(directory / "slurm_dl.request", run)
        except SystemExit as end:
            return end.code == job.EXIT_REQUEUE
        return False


@pytest.fixture
def training(place: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    """One in that directory."""
    del place
    return Training(monkeypatch)


@pytest.mark.parametrize(
    ("steps", "asks", "stops"),
    [
        (range(6), [None], [False]),
        (range(6), [2, None], [True, False]),
        (range(6), [0, 1, 4, None], [True, True, True, False]),
        (range(10, 40, 5), [20, 25, None], [True, True, False]),
        (range(6, 0, -1), [4, None], [True, False]),
        (range(6), [5, None], [False, False]),  # nothing is left to do: the script goes on
        (range(0), [None], [False]),
    ],
    ids=str,
)
def test_each_step_is_done_once_over_all_runs(
    place: Path, training: Training, steps: range, asks: list[int | None], stops: list[bool]
) -> None:
    """Each stop leaves a whole checkpoint, whenever it is asked, and the progress is told."""
    assert [training.run(steps, ask_at=ask) for ask in asks] == stops

    assert training.state == [*steps]
    # Each run saves once, as it stops or after the last step, if it had a step to do.
    saves = len(asks) - (not steps or asks[0] == 5)
    assert training.paths == [step_loop.NAMES[i % 2] for i in range(saves)]
    assert not list(place.glob("*.part"))
    if steps:
        told = json.loads((place / "slurm_dl.progress.json").read_text())
        assert (told["step"], told["total"]) == (len(steps),) * 2 or asks[0] == 5


def test_outside_dlrun_it_is_the_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, training: Training
) -> None:
    """Nothing is saved, as with the other calls."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_DL_RUN_DIR", raising=False)

    assert not training.run(range(3), every_s=0.0)
    assert (training.state, training.paths, [*tmp_path.iterdir()]) == ([0, 1, 2], [], [])


def test_it_saves_unasked_in_turn_and_a_killed_run_resumes(place: Path, training: Training) -> None:
    """A node fails in the middle of a step, and while a checkpoint was being written."""
    steps = job.loop(range(9), save=training.save, load=training.load, every_s=0.0)
    while len(training.state) < 5:
        training.state.append(next(steps))
    del steps
    (place / "checkpoint-1.part").mkdir()
    assert training.paths == [*step_loop.NAMES, *step_loop.NAMES]

    training.run(range(9), every_s=1e9)
    assert training.state == [*range(9)]
    (place / "checkpoint-0").unlink()  # the newer one
    training.run(range(9), ask_at=8, every_s=1e9)

    assert training.state == [*range(9)]
    assert training.paths[4:] == ["checkpoint-0", "checkpoint-0"]


def saves_nothing(path: Path) -> None:
    del path


def saves_a_directory(path: Path) -> None:
    path.mkdir()
    (path / "part").write_text("x")


@pytest.mark.parametrize("save", [saves_nothing, saves_a_directory])
def test_a_checkpoint_may_be_a_directory_and_must_be_there(
    place: Path, save: Callable[[Path], None]
) -> None:
    """One that numpy wrote under a name with .npz at its end, say, is an error at once."""
    steps = job.loop(range(5), save=save, load=lambda _: None, every_s=0.0)
    if save is saves_nothing:
        with pytest.raises(FileNotFoundError, match=r"written nothing to .*checkpoint-0\.part"):
            list(steps)
    else:
        assert list(steps) == [*range(5)]
        assert all((place / name / "part").is_file() for name in step_loop.NAMES)


def test_a_checkpoint_of_other_code_has_no_number(place: Path, training: Training) -> None:
    """To begin at 0 with its weights would be another training."""
    (place / "mine").write_text("[]")
    job.checkpoint_saved(place / "mine")

    with pytest.raises(ValueError, match="without the number of steps done"):
        training.run(range(3))


class Ranks:
    """torch.distributed of one rank; *others* is the largest number that another one brings."""

    def __init__(self, others: Iterator[int]) -> None:
        self.others = others
        self.ReduceOp = SimpleNamespace(MAX="max")
        self.is_available = self.is_initialized = lambda: True
        self.get_backend = lambda: "gloo"

    def all_reduce(self, numbers: Number, op: str) -> None:
        """As torch does it: in place."""
        assert op == "max"
        numbers.value = max(numbers.value, next(self.others))


class Number:
    """A tensor of one number."""

    def __init__(self, values: list[int], device: str) -> None:
        (self.value,) = values
        assert device == "cpu"

    def item(self) -> int:
        """Its number."""
        return self.value


@pytest.mark.parametrize(("rank", "paths"), [("0", [*step_loop.NAMES]), ("1", [])])
def test_all_ranks_save_and_stop_at_the_step_where_one_is_asked(
    training: Training, monkeypatch: pytest.MonkeyPatch, rank: str, paths: list[str]
) -> None:
    """Rank 0 alone writes; the others leave when it has, since torchrun ends all at the first."""
    brought = iter([0, 1, 0, 2, 2])
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(tensor=Number))
    monkeypatch.setitem(sys.modules, "torch.distributed", Ranks(brought))

    assert training.run(range(9))
    assert (training.state, training.paths) == ([0, 1, 2, 3], paths)
    assert [*brought] == []


def test_ranks_that_cannot_agree_are_refused(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would stop some steps apart, and wait for each other until the grace is over."""
    monkeypatch.setenv("RANK", "1")

    with pytest.raises(ValueError, match="init_process_group"):
        training.run(range(3))


@pytest.mark.parametrize("outside", [False, True])
def test_a_script_has_one_loop(
    training: Training, monkeypatch: pytest.MonkeyPatch, *, outside: bool
) -> None:
    """A second one would begin at the first one's checkpoint; a trial outside dlrun tells, too."""
    if outside:
        monkeypatch.delenv("SLURM_DL_RUN_DIR")
    training.run(range(2))
    with pytest.raises(ValueError, match="one loop"):
        next(iter(job.loop(range(2), save=training.save, load=training.load)))


@pytest.mark.parametrize("other", [range(5, 15), range(0, 20, 2)])
def test_another_range_is_refused(training: Training, other: range) -> None:
    """Its first steps would be taken for done."""
    assert training.run(range(10), ask_at=4)
    with pytest.raises(ValueError, match="range"):
        training.run(other)


def test_after_the_last_step_all_is_saved(training: Training) -> None:
    """What comes after the loop may take long, and be preempted."""
    training.run(range(3))
    training.run(range(3))

    assert training.state == [0, 1, 2]

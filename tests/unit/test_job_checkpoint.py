"""The script's side: asked or not, recorded or not, resumed from where."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_dl import job
from slurm_dl.job import checkpoint, run_files


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No environment of a job, and a process that has not been asked yet."""
    for name in [*os.environ]:
        if name.startswith(("SLURM_", "PMI_", "OMPI_")) or name == "RANK":
            monkeypatch.delenv(name)
    monkeypatch.setattr(checkpoint, "_watch", checkpoint._Watch())
    before = {s: signal.getsignal(s) for s in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory, as dlrun sets it; this is run 2."""
    monkeypatch.setenv("SLURM_DL_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("SLURM_DL_RESTART_COUNT", "2")
    monkeypatch.setattr(checkpoint, "LOOK_EVERY_S", 0.0)
    return tmp_path


def request(place: Path, restart: int = 2, attempt: int = 0) -> None:
    run_files.write_mark(place / "slurm_dl.request", run_files.RunId(restart, attempt))


def save(place: Path, name: str, step: int | None = None) -> Path:
    path = place / name
    path.write_text("weights")
    job.checkpoint_saved(path, step=step)
    return path


def test_outside_dlrun_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script with these calls runs anywhere, and leaves no trace."""
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGUSR1)
    job.install()
    job.checkpoint_saved("no such file")
    job.report(3, 10, loss=0.5)

    assert not job.should_checkpoint()
    assert job.resume_from() is None
    assert job.run_dir() is None
    assert job.restart_count() == 0
    assert signal.getsignal(signal.SIGUSR1) is before
    assert list(tmp_path.iterdir()) == []


def test_exit_for_requeue_ends_with_75_anywhere(place: Path) -> None:
    """Status 75 says "run me again", and the mark says it where a launcher hides the status."""
    with pytest.raises(SystemExit) as ended:
        job.exit_for_requeue()

    assert ended.value.code == job.EXIT_REQUEUE == 75
    assert run_files.is_marked(place / "slurm_dl.stopped", run_files.RunId(2, 0))


def test_the_restart_count_is_slurms_unless_dlrun_gave_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Anything that is not a number counts as no restart."""
    monkeypatch.setenv("SLURM_RESTART_COUNT", "4")
    assert job.restart_count() == 4
    monkeypatch.setenv("SLURM_DL_RESTART_COUNT", "5")
    assert job.restart_count() == 5
    monkeypatch.setenv("SLURM_DL_RESTART_COUNT", "-1")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "x")
    assert job.restart_count() == 0


# --- asked


def test_the_signal_asks_and_it_stays_asked(place: Path) -> None:
    """The flag is never cleared: ranks would disagree."""
    assert not job.should_checkpoint()
    signal.raise_signal(signal.SIGUSR1)

    assert job.should_checkpoint()
    save(place, "c")
    assert job.should_checkpoint()


def test_the_handler_that_was_there_is_called_too(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A framework's own handler keeps working."""
    assert place.exists()
    monkeypatch.setenv("SLURM_DL_SIGNAL", "USR2")
    got: list[int] = []
    signal.signal(signal.SIGUSR2, lambda number, _frame: got.append(number))
    job.install()
    signal.raise_signal(signal.SIGUSR2)

    assert got == [signal.SIGUSR2]
    assert job.should_checkpoint()


def test_term_is_left_to_end_the_process(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that caught TERM would sit there until it is killed; the file asks it."""
    monkeypatch.setenv("SLURM_DL_SIGNAL", "TERM")
    before = signal.getsignal(signal.SIGTERM)
    assert not job.should_checkpoint()
    assert signal.getsignal(signal.SIGTERM) is before

    request(place)
    assert job.should_checkpoint()


@pytest.mark.usefixtures("place")
def test_a_thread_may_ask_first() -> None:
    """Python sets handlers in the main thread only; elsewhere the file is enough."""
    answers: list[bool] = []
    before = signal.getsignal(signal.SIGUSR1)
    thread = threading.Thread(target=lambda: answers.append(job.should_checkpoint()))
    thread.start()
    thread.join()

    assert answers == [False]
    assert signal.getsignal(signal.SIGUSR1) is before


def test_the_request_file_asks_every_rank(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the only way to reach ranks that get no signal."""
    monkeypatch.setenv("RANK", "7")
    assert not job.should_checkpoint()
    request(place)

    assert job.should_checkpoint()


@pytest.mark.parametrize("run", [(1, 0), (3, 0), (2, 1)])
def test_a_request_for_another_run_is_ignored(place: Path, run: tuple[int, int]) -> None:
    """An old file must not stop a new run."""
    request(place, *run)
    assert not job.should_checkpoint()

    request(place)
    assert job.should_checkpoint()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b"null", b"{}", b"[" * 100_000])
def test_a_broken_request_file_is_no_request_and_no_error(place: Path, content: bytes) -> None:
    """A question at every step must never raise."""
    (place / "slurm_dl.request").write_bytes(content)

    assert not job.should_checkpoint()


def test_a_run_directory_that_is_gone_is_no_error(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file system that fails for a moment does not end a training."""
    monkeypatch.setenv("SLURM_DL_RUN_DIR", str(place / "gone"))
    assert not job.should_checkpoint()
    assert "cannot announce" in capsys.readouterr().err


def test_the_file_is_looked_at_only_now_and_then(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stat at every step would cost a shared file system dearly."""
    clock = 100.0
    monkeypatch.setattr(checkpoint, "LOOK_EVERY_S", 0.5)
    monkeypatch.setattr("slurm_dl.job.checkpoint.time.monotonic", lambda: clock)
    assert not job.should_checkpoint()
    request(place)
    clock = 100.49
    assert not job.should_checkpoint()
    clock = 100.5
    assert job.should_checkpoint()


def test_the_first_rank_announces_that_it_listens(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dlrun then needs no signal, which under srun would kill loader workers."""
    monkeypatch.setenv("RANK", "1")
    job.install()
    assert not (place / "slurm_dl.listening").exists()

    monkeypatch.setattr(checkpoint, "_watch", checkpoint._Watch())
    monkeypatch.setenv("RANK", "0")
    job.should_checkpoint()
    assert run_files.is_marked(place / "slurm_dl.listening", run_files.RunId(2, 0))


# --- recorded


def test_the_last_recorded_checkpoint_is_resumed(place: Path) -> None:
    """Newest first, whatever their names."""
    save(place, "b", 10)
    newest = save(place, "a", 20)

    assert job.resume_from() == newest
    assert [c["step"] for c in checkpoint.recorded(place)] == [20, 10]


def test_a_lost_checkpoint_falls_back_to_the_one_before(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Less work is lost than by starting over, and the log says so."""
    first, second = save(place, "first"), save(place, "second")
    second.unlink()
    assert job.resume_from() == first
    assert f"{second} is gone" in capsys.readouterr().err

    first.unlink()
    assert job.resume_from() is None
    assert "starting from the beginning" in capsys.readouterr().err


def test_a_checkpoint_that_does_not_exist_is_refused(place: Path) -> None:
    """A record of nothing would lose the work at the next restart."""
    with pytest.raises(FileNotFoundError, match="does not exist; call this after it is written"):
        job.checkpoint_saved(place / "missing", 3)

    assert job.resume_from() is None


def test_the_record_keeps_a_few_and_each_path_once(place: Path) -> None:
    """A script that overwrites one file has one checkpoint, not many."""
    for step in range(3):
        save(place, "same", step)
    assert [c["step"] for c in checkpoint.recorded(place)] == [2]

    for step in range(10):
        save(place, f"c{step}", step)
    assert [c["step"] for c in checkpoint.recorded(place)] == [9, 8, 7, 6]


def test_relative_paths_and_links_are_found_from_anywhere(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run may start in another directory; a link named "latest" stays a link."""
    monkeypatch.chdir(place)
    (place / "real").mkdir()
    (place / "real" / "shard").write_text("x")
    (place / "latest").symlink_to("real")
    job.checkpoint_saved("latest")
    monkeypatch.chdir("/")

    assert job.resume_from() == place / "latest"


def test_other_ranks_do_not_record(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 speaks for the job."""
    monkeypatch.setenv("SLURM_PROCID", "1")
    job.checkpoint_saved(place / "missing")
    job.report(1)
    assert list(place.iterdir()) == []

    monkeypatch.setenv("RANK", "0")  # torchrun's rank counts more than the batch step's
    save(place, "c")
    assert job.resume_from() == place / "c"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"checkpoints":[{"step":1}]}'])
def test_an_unreadable_record_is_an_error_not_a_fresh_start(place: Path, content: str) -> None:
    """To start over silently would lose the work, and overwrite the checkpoints."""
    (place / "slurm_dl.state.json").write_text(content)
    with pytest.raises(ValueError, match=r"slurm_dl\.state\.json: unreadable .*mend it, or remove"):
        job.resume_from()


CRASH = """
import json, os, sys
from pathlib import Path
from slurm_dl.job import run_files
path = Path(sys.argv[1])

def dies_at(number):
    lines = 0
    def trace(frame, event, arg):
        nonlocal lines
        lines += event == "line"
        if lines == number:
            os.kill(os.getpid(), 9)
        return trace
    sys.settrace(trace)
    run_files.write_whole(path, {"number": 2})
    sys.settrace(None)
    os._exit(0)

status, found = 9, []
while status == 9 and len(found) < 2000:
    pid = os.fork() or dies_at(len(found) + 1)
    status = os.waitpid(pid, 0)[1]
    found.append(path.read_text())
print(json.dumps([status, found]))
"""


def test_a_kill_at_any_line_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """Killed before each line of Python in turn, library code included, it is whole every time."""
    path = tmp_path / "state"
    run_files.write_whole(path, {"number": 1})
    done = subprocess.run(
        [sys.executable, "-S", "-c", CRASH, str(path)],
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        check=True,
    )
    status, found = json.loads(done.stdout)

    assert status == 0
    first_new = found.index('{"number": 2}\n')
    assert first_new > 10
    assert set(found[:first_new]) == {'{"number": 1}\n'}
    assert set(found[first_new:]) == {'{"number": 2}\n'}


SAVER = """
import itertools, sys
from pathlib import Path
from slurm_dl import job
place = job.run_dir()
for step in itertools.count():
    path = place / f"c{step % 3}"
    scratch = path.with_suffix(".tmp")
    scratch.write_text(str(step))
    scratch.replace(path)
    job.checkpoint_saved(path, step)
    print(step, flush=True)
"""


def test_a_kill_at_a_random_moment_loses_no_recorded_checkpoint(place: Path) -> None:
    """What checkpoint_saved has returned from is there, or something newer."""
    for patience in (1, 4, 9, 16):
        with subprocess.Popen(
            [sys.executable, "-S", "-c", SAVER],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=subprocess.PIPE,
            text=True,
        ) as saver:
            assert saver.stdout is not None
            for _ in range(patience):
                saver.stdout.readline()
            saver.kill()
            rest = saver.stdout.read().split()
        told = int(rest[-1]) if rest else patience - 1
        found = job.resume_from()
        assert int(found.read_text()) >= told
        recorded = checkpoint.recorded(place)[0]["step"]
        assert isinstance(recorded, int)
        assert recorded >= told


def test_a_failed_write_leaves_no_scratch_file(place: Path) -> None:
    """A thousand full disks must not leave a thousand files."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        run_files.write_whole(place / "x", {"number": float("nan")})
    with pytest.raises(OSError, match="x"):
        run_files.write_whole(place / "gone" / "x", {})
    (place / "x").mkdir()
    with pytest.raises(OSError, match="x"):
        run_files.write_whole(place / "x", {})

    assert [p.name for p in place.iterdir()] == ["x"]


def test_a_file_planted_under_a_link_is_replaced_not_followed(place: Path) -> None:
    """Writing replaces the name; what a link points to stays as it was."""
    victim = place / "victim"
    victim.write_text("precious")
    (place / "slurm_dl.state.json").symlink_to(victim)
    run_files.write_whole(place / "slurm_dl.state.json", {"checkpoints": []})

    assert victim.read_text() == "precious"
    assert json.loads((place / "slurm_dl.state.json").read_text()) == {"checkpoints": []}


def test_nothing_of_the_rest_of_the_project_is_imported() -> None:
    """A training environment has only the standard library and an old Python."""
    code = (
        "import sys; before = set(sys.modules); import slurm_dl.job, slurm_dl.job.run; "
        "print(*sorted(m for m in set(sys.modules) - before "
        "if m.split('.')[0] not in sys.stdlib_module_names))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    foreign = [m for m in done.stdout.split() if not m.startswith("slurm_dl.job")]
    assert foreign == ["slurm_dl"]


def test_the_code_is_python_3_8() -> None:
    """A training environment may be older than slurm_dl's own; annotations stay unevaluated."""
    files = sorted(Path(checkpoint.__file__).parent.rglob("*.py"))
    assert len(files) > 5
    for path in files:
        tree = ast.parse(path.read_text(), feature_version=(3, 8))
        imports = [n.module for n in tree.body if isinstance(n, ast.ImportFrom)]
        assert imports[0] == "__future__", path

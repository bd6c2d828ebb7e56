"""What a stranger puts where a job's run directory will be, or into it: nobody takes it for theirs.

Owners are real ones, so this needs root; the jobs' side runs as an ordinary user.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_dl.job.run_files import LARGEST_BYTES, STATE_FILE, read_regular
from slurm_dl.signal_test.run_directory import RunFiles
from slurm_dl.submit import batch_script
from slurm_dl.submit.job_request import SubmitOptions, check
from slurm_dl.submit.job_shape import JobShape
from slurm_dl.submit.script_templates import TemplateDirectory

ROOT = Path(__file__).parents[2]
PYTHON = "/usr/bin/python3"
"""One that every user may run; the job's side needs nothing but its standard library."""

OWNER, STRANGER, GROUP = 12345, 65534, 100

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(PYTHON, os.X_OK), reason="needs root, for other users' files"
)

TRAINING = """
import pickle
from slurm_dl.job import resume_from
found = resume_from()
print("loaded", pickle.load(open(found, "rb")) if found else "nothing")
"""


class Planted:
    """What a victim would see if it loaded a stranger's checkpoint."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (str, ("of the stranger",))


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory in which everybody may make files, as /tmp or /scratch."""
    made = Path(tempfile.mkdtemp(prefix="planted-", dir="/tmp"))
    made.chmod(0o1777)
    yield made
    shutil.rmtree(made)


def plant(run_dir: Path) -> None:
    """A record in *run_dir* that names a checkpoint beside it, all of the stranger."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "c.pkl").write_bytes(pickle.dumps(Planted()))
    entry = {"path": str(run_dir / "c.pkl"), "step": 9}
    (run_dir / STATE_FILE).write_text(json.dumps({"v": 1, "checkpoints": [entry]}))
    give(run_dir, STRANGER)


def give(path: Path, uid: int, mode: int | None = None) -> None:
    for each in (path, *path.rglob("*")):
        os.chown(each, uid, GROUP, follow_symlinks=False)
    if mode is not None:
        path.chmod(mode)


def at_base(base: Path) -> None:
    plant(base / "77")
    give(base, STRANGER)


def at_run_dir(base: Path) -> None:
    base.mkdir(mode=0o1777)
    base.chmod(0o1777)
    plant(base / "77")


def as_a_link(base: Path) -> None:
    at_base(base.with_name("elsewhere"))
    base.symlink_to("elsewhere")
    os.chown(base, STRANGER, GROUP, follow_symlinks=False)


def at_the_record(base: Path) -> None:
    plant(base / "77")
    for own in (base, base / "77"):
        os.chown(own, OWNER, GROUP)


def at_run_dir_by_link(base: Path) -> None:
    at_run_dir(base)
    own = base / "own"
    own.mkdir()
    give(own, OWNER)
    shutil.rmtree(base / "77")
    (base / "77").symlink_to("own")
    os.chown(base / "77", STRANGER, GROUP, follow_symlinks=False)


PLANTS = (at_base, at_run_dir, as_a_link, at_the_record, at_run_dir_by_link)


def as_owner(
    *argv: str, cwd: Path, umask: int = 0o022, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        user=OWNER,
        group=GROUP,
        extra_groups=[],
        umask=umask,
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": "/", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def dlrun(run_dir: Path, umask: int = 0o022) -> subprocess.CompletedProcess[str]:
    argv = (PYTHON, "-m", "slurm_dl.job.run", PYTHON, "-c", TRAINING)
    return as_owner(*argv, cwd=run_dir.parents[1], umask=umask, SLURM_DL_RUN_DIR=os.fspath(run_dir))


@pytest.mark.parametrize("plants", PLANTS)
def test_nothing_planted_is_resumed_from(shared: Path, plants: Callable[[Path], None]) -> None:
    """Not by dlrun, nor by a script without it; the log says whose it is, and the job fails."""
    base = shared / "slurm_dl_runs"
    plants(base)

    done = dlrun(base / "77")
    assert done.returncode == 1
    assert "loaded" not in done.stdout
    assert f"belongs to uid {STRANGER}" in done.stderr

    alone = as_owner(PYTHON, "-c", TRAINING, cwd=shared, SLURM_DL_RUN_DIR=f"{base}/77")
    assert alone.returncode == 1
    assert "loaded" not in alone.stdout


@pytest.mark.parametrize("plants", [at_base, at_run_dir, as_a_link])
def test_a_script_ends_before_the_users_own_lines(
    shared: Path, plants: Callable[[Path], None]
) -> None:
    """What stands between the header and dlrun might write there."""
    base = shared / "slurm_dl_runs"
    plants(base)
    done = as_owner("/bin/bash", "-c", script_of(base), cwd=shared, SLURM_JOB_ID="77")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{base}/77" in done.stderr


def script_of(base: Path) -> str:
    """A script of dlsubmit's whose dlrun only says that it was reached."""
    asked = SubmitOptions(gpus="1", run_dir=str(base))
    request = check(asked, sbatch=(), command=("true",), cwd="/", dlrun="echo")
    shape = JobShape(nodes=1, gpus_per_node=1, gpu_type=None, types=(), enough_up=True)
    where = (TemplateDirectory(owner="checkout", directory=ROOT / "templates"),)
    return batch_script.compose(request, shape, where).script


@pytest.mark.parametrize("by_header", [False, True])
def test_a_run_directory_is_its_owners_alone(shared: Path, *, by_header: bool) -> None:
    """In a project's directory with a set-group-ID bit, under a umask that opens all to a group.

    One that an earlier version left open is closed, and goes on.
    """
    project = shared / "project"
    project.mkdir()
    give(project, OWNER, 0o2775)
    run_dir = project / "slurm_dl_runs" / "77"
    if by_header:
        script = script_of(run_dir.parent)
        made = as_owner("/bin/bash", "-c", script, cwd=project, umask=0o002, SLURM_JOB_ID="77")
    else:
        made = dlrun(run_dir, umask=0o002)
    assert made.returncode == 0, made.stderr
    assert [p.stat().st_mode & 0o777 for p in (run_dir.parent, run_dir)] == [0o700, 0o700]
    assert project.stat().st_mode & 0o7777 == 0o2775

    for path in (run_dir.parent, run_dir):
        path.chmod(0o2775)
    done = dlrun(run_dir)
    assert (done.returncode, done.stdout) == (0, "loaded nothing\n")
    assert [p.stat().st_mode & 0o777 for p in (run_dir.parent, run_dir)] == [0o755, 0o700]


def test_a_base_of_another_name_is_not_changed_but_refused(shared: Path) -> None:
    """It may be a project's directory, which others are meant to write to."""
    base = shared / "runs"
    base.mkdir()
    give(base, OWNER, 0o2775)
    done = dlrun(base / "77")
    assert done.returncode == 1
    assert f"others can write to {base} (mode 2775): chmod go-w" in done.stderr
    assert base.stat().st_mode & 0o7777 == 0o2775

    base.chmod(0o755)
    assert dlrun(base / "77").returncode == 0


NO_FILES: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link": lambda path: path.symlink_to("/etc/passwd"),
    "a directory": Path.mkdir,
    "a huge file": lambda path: path.write_bytes(b"{" * (LARGEST_BYTES + 1)),
}


@pytest.mark.parametrize("kind", NO_FILES)
def test_an_admins_look_at_a_job_waits_for_nothing_and_fills_no_memory(
    shared: Path, kind: str
) -> None:
    """What `dlctl profile learn`, as root, and `dlctl test-signal` read of a job."""
    run_dir = shared / "77"
    run_dir.mkdir()
    for name in (STATE_FILE, "slurm_dl.progress.json", "slurm_dl.listening"):
        NO_FILES[kind](run_dir / name)
    give(run_dir, STRANGER)
    began_s = time.monotonic()
    files = RunFiles(run_dir)
    assert (files.traces(0).record, files.step(0), files.listens(0)) == ({}, None, False)
    with pytest.raises((OSError, ValueError)):
        read_regular(run_dir / STATE_FILE)
    assert time.monotonic() - began_s < 10

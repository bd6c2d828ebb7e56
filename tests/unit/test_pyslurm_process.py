"""The worker as a process: answers whole and in time or not at all, and never outlives us."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from patience import eventually

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.pyslurm import worker_process
from slurm_dl.slurm.pyslurm.worker_process import PausedError, PyslurmProcess, environment, probe

FAKE = Path(__file__).parents[1] / "fake_pyslurm"

Make = Callable[..., PyslurmProcess]


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now_s


def behaving(how: str | Path) -> dict[str, str]:
    """The worker's environment with the pyslurm of the tests in it."""
    return environment("/nowhere/slurm.conf") | {
        "PYTHONPATH": str(FAKE),
        "FAKE_PYSLURM": str(how),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes processes and sees to it that all have ended."""
    made: list[PyslurmProcess] = []
    before = children()

    def one(how: str | Path = "", *, timeout_s: float = 20, **options: object) -> PyslurmProcess:
        process = PyslurmProcess(behaving(how), timeout_s=timeout_s, **options)  # type: ignore[arg-type]
        made.append(process)
        return process

    yield one
    for process in made:
        pid = process.pid
        process.close()
        assert pid is None or not is_there(pid)
    # Other tests may have children that live as long as this process (multiprocessing's tracker).
    assert children() <= before


def children() -> set[int]:
    """Processes that this one has started and has not waited for."""
    tasks = Path("/proc/self/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text().split()}


def is_there(pid: int) -> bool:
    """Whether there is such a process, a zombie included."""
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def saying(tmp_path: Path, body: str) -> Path:
    """A program that does *body* once it has read a request; ``say`` writes to standard output."""
    program = tmp_path / "worker.py"
    program.write_text(
        "import json, os, sys, time\n"
        "def say(data):\n    os.write(1, data)\n"
        "def frame(answer):\n"
        "    data = json.dumps(answer).encode()\n    return b'%d\\n' % len(data) + data\n"
        "while line := sys.stdin.buffer.readline():\n"
        "    n = json.loads(line)['id']\n"
        f"    {body}\n",
        encoding="ascii",
    )
    return program


@pytest.fixture
def two_jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps([{"id": 7}, {"id": 8, "name": "eval"}]), encoding="ascii")
    return path


def test_the_queue_is_told_by_one_worker_again_and_again(make: Make, two_jobs: Path) -> None:
    """What libslurm prints does not get between the answers, and nobody starts anew."""
    process = make(two_jobs)
    pids = set()
    for _ in range(3):
        answer = process.ask(do="queue")
        pids.add(process.pid)
        assert answer["columns"]["JobID"] == ["7", "8"]
        assert answer["columns"]["Name"] == ["train", "eval"]

    assert len(pids) == 1
    assert 500 < process.received < 5_000


def test_nothing_of_our_environment_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM_CLUSTERS and the like would make it read another cluster."""
    monkeypatch.setenv("SLURM_CLUSTERS", "other")
    monkeypatch.setenv("SLURM_CONF", "/other/slurm.conf")

    assert environment("/etc/slurm/slurm.conf") == {
        "PATH": "/usr/bin:/bin",
        "LC_ALL": "C",
        "TZ": "UTC",
        "SLURM_BITSTR_LEN": "0",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
    }
    assert "SLURM_CONF" not in environment("")


def test_a_refusal_of_slurm_is_an_error_and_no_reason_to_end(make: Make) -> None:
    """The controller may be down; the worker is not to blame."""
    process = make("refuse")

    for _ in range(2):
        with pytest.raises(ClusterError, match="Unable to contact slurm controller"):
            process.ask(do="queue")
    assert process.pid is not None


def test_silence_ends_it(make: Make) -> None:
    """A worker that hangs in a call is killed when its time is up."""
    process = make("hang", timeout_s=0.5)

    with pytest.raises(ClusterError, match=r"no answer in 0\.5 s"):
        process.ask(do="queue")
    assert process.pid is None


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("fatal", r"middle of an answer; it ended with exit status 1; fatal: Unable to process"),
        ("crash", r"middle of an answer; it was ended by signal 6; free\(\): invalid pointer"),
    ],
)
def test_an_end_is_told_with_its_last_words(make: Make, how: str, words: str) -> None:
    """An import that ends the process and a crash inside libslurm are errors of this poll."""
    with pytest.raises(ClusterError, match=words):
        make(how).ask(do="queue")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("say(b'surprise\\n')", "garbage"),
        ("say(b'x' * 100)", "garbage"),
        ("say(b'-5\\n')", "garbage"),
        ("say(b'3\\n{]}')", "garbage"),
        ("say(b'2\\n[]')", "garbage"),
        ("say(b'1000\\n' + b'[' * 1000)", "garbage"),
        ("say(frame({'id': n + 1}))", "garbage"),
        ("say(frame({'id': n}) + b'more')", "garbage"),
        ("say(b'300\\n' + b'x' * 299); sys.exit()", "middle of an answer"),
        ("say(b'300\\n' + b'x' * 299); time.sleep(60)", "no answer in 0.5 s"),
        ("say(b'1001\\n' + b'x' * 1001)", "1001 bytes, which is too much"),
        ("sys.exit()", "middle of an answer"),
        ("os.close(1); time.sleep(60)", "middle of an answer"),
    ],
)
def test_half_an_answer_or_garbage_is_none(
    make: Make, tmp_path: Path, body: str, words: str
) -> None:
    """Whatever is not one whole answer to this question ends the worker."""
    timeout_s = 0.5 if "no answer" in words else 20.0
    process = make(program=saying(tmp_path, body), timeout_s=timeout_s, most_bytes=1000)

    with pytest.raises(ClusterError, match=words):
        process.ask(do="queue")
    assert process.pid is None


@pytest.mark.parametrize(
    "body",
    [
        "os.write(2, b'noise ' * 50_000); say(frame({'id': n}))",
        "os.closerange(2, 3); say(frame({'id': n}))",
        "d = frame({'id': n}); [say(d[i:i + 1]) for i in range(len(d))]",
        "say(frame({'id': n, 'x': 'y' * 900_000}))",
    ],
)
def test_answers_come_in_any_pieces_beside_any_noise(make: Make, tmp_path: Path, body: str) -> None:
    """Full pipes, closed ones and single bytes are no trouble."""
    process = make(program=saying(tmp_path, body))

    assert process.ask(do="queue")["id"] == 1
    assert process.ask(do="queue")["id"] == 2


def test_noise_without_an_end_is_no_answer(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever always has something to say beside it is ended when the time is up, too."""
    process = make(program=saying(tmp_path, "while True: os.write(2, b'noise ' * 9000)"))
    seconds, heard = itertools.count(), itertools.count()

    def listen(err: int) -> bool:
        assert next(heard) < 1_000_000, "it listens for ever"
        return bool(os.read(err, 1))

    monkeypatch.setattr(worker_process, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    monkeypatch.setattr(process, "_listen", listen)

    with pytest.raises(ClusterError, match="no answer in 20 s"):
        process.ask(do="queue")
    assert process.pid is None


def test_after_a_failure_there_is_a_pause_that_grows(make: Make, tmp_path: Path) -> None:
    """A worker that cannot work is not started at each poll; one answer makes it good."""
    good = saying(tmp_path, "say(frame({'id': n})) if n not in (1, 2, 4) else sys.exit()")
    clock = Clock()
    process = make(program=good, clock=clock)

    for pause_s in (5.0, 10.0):
        with pytest.raises(ClusterError, match="middle of an answer"):
            process.ask(do="queue")
        clock.now_s += pause_s - 0.5
        with pytest.raises(PausedError, match="again in 1 s"):
            process.ask(do="queue")
        assert process.pid is None
        clock.now_s += 0.5
    assert process.ask(do="queue")["id"] == 3
    with pytest.raises(ClusterError, match="middle of an answer"):
        process.ask(do="queue")
    clock.now_s += 5.0
    assert process.ask(do="queue")["id"] == 5


@pytest.mark.parametrize("how", ["jobs.json", "hang"])
def test_it_dies_with_the_process_that_asked(how: str, two_jobs: Path) -> None:
    """Killed without a word in the middle of a question or between two, nothing is left behind."""
    script = (
        "import os, sys, threading\n"
        "from slurm_dl.slurm.pyslurm.worker_process import PyslurmProcess\n"
        "p = PyslurmProcess(dict(os.environ), timeout_s=600)\n"
        "def tell():\n"
        "    while p.pid is None: pass\n"
        "    print(p.pid, flush=True)\n"
        "teller = threading.Thread(target=tell)\n"
        "teller.start()\n"
        "p.ask(do='queue')\n"
        "teller.join()\n"
        "print('answered', flush=True)\n"
        "threading.Event().wait()\n"
    )
    behaves = two_jobs if how == "jobs.json" else how
    loading = two_jobs.with_name("loading")
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env=behaving(behaves) | {"FAKE_PYSLURM_LOADING": str(loading)},
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as parent:
        try:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            if how == "jobs.json":
                assert parent.stdout.readline() == "answered\n"
            else:
                eventually(loading.exists, 20)
        finally:
            parent.send_signal(signal.SIGKILL)
    eventually(lambda: not is_there(pid) or is_zombie(pid), 10)


def is_zombie(pid: int) -> bool:
    """Whether it waits for a foreign init to reap it."""
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2][1] == "Z"
    return True


def test_the_probe_tells_the_version(two_jobs: Path) -> None:
    """And nothing that libslurm prints beside it."""
    assert probe(behaving(two_jobs)) == "25.11.2"


def test_the_probe_survives_what_an_import_can_do() -> None:
    """The process that imports may be ended by it, hang, or find nothing to import."""
    with pytest.raises(ClusterError, match="cannot be imported: fatal: Unable to process"):
        probe(behaving("fatal"))
    with pytest.raises(ClusterError, match=r"longer than 0\.5 s"):
        probe(behaving("slow import"), within_s=0.5)
    with pytest.raises(ClusterError, match="cannot be imported: ModuleNotFoundError"):
        probe(environment(""))

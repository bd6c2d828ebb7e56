"""Runs the tests: `make test`, `make test-part`, `make test-all`, and some files by name.

Tests run in lanes side by side: those that wait for Slurm, those that compute, those in
containers. What failed on real daemons is repeated once, one test after the other and with nothing
beside it; a test that passes then is reported, but does not fail the run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import selection
from engine import NO_ENGINE
from selection import LEFT_OUT, ROOT
from sweep import new_directory, sweep

PARTS: Final = 12
MOST_REPEATED: Final = 8
CHANGED_S: Final = 300.0
"""Longest duration, by the table, of the changed test files that a part runs in addition."""
LANE_S: Final = {"test": 25 * 60, "part": 40 * 60, "all": 60 * 60, "some": 25 * 60}
KILL_AFTER_S: Final = 60
NO_TESTS: Final = 5
"""Exit status of pytest that was left without a test."""
SOME_FAILED: Final = 1
"""Exit status of pytest if tests failed and nothing else was wrong."""
BEFORE_FAILED: Final = 90
"""Exit status of a lane in which what comes before the tests failed."""
TELL_EVERY_S: Final = 60
QUICK: Final = " and ".join(f"not {mark}" for mark in LEFT_OUT)

# nice alone does nothing between sessions: each has an equal share of the cores. With more than 5,
# a lane beside busy programs gets so little that its subprocesses time out.
GIVE_WAY: Final = (
    "sh",
    "-c",
    'echo 5 2>/dev/null >/proc/self/autogroup; exec nice -n 5 "$@"',
    "sh",
)


@dataclass
class Lane:
    """Commands that run one after the other, in a session of their own.

    Attributes:
        name: Of its caches and its log.
        tests: pytest's arguments.
        before: What runs before pytest.
        gives_way: Whether the other lanes have the cores first.
        may_be_empty: Whether it may find no test to run.
    """

    name: str
    tests: Sequence[str]
    before: Sequence[str] = ()
    gives_way: bool = False
    may_be_empty: bool = False
    process: subprocess.Popen[bytes] | None = None
    status: int | None = None
    failed: dict[str, bool] = field(default_factory=dict)
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)

    def start(self, run: Path) -> None:
        """Start it; its output goes to a file."""
        pytest = [
            *(sys.executable, "-m", "pytest", "--durations=15", f"--record={self._record(run)}"),
            *("-o", f"cache_dir=.pytest_cache/{self.name}", *self.tests),
        ]
        # The tests run even if what comes before them fails.
        before = shlex.join(self.before or [":"])
        # Without a Docker Engine the tests themselves are skipped, or fail where CI is set.
        before += f" || [ $? = {NO_ENGINE} ] || status={BEFORE_FAILED}"
        argv = ["bash", "-c", f'{before}; "$@"; exit ${{status:-$?}}', "bash", *pytest]
        with self.log(run).open("wb") as log:
            self.process = subprocess.Popen(
                [*(GIVE_WAY if self.gives_way else ()), *argv],
                cwd=ROOT,
                env={**os.environ, **_environment(run)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self, run: Path) -> Path:
        """What it has printed."""
        return run / f"{self.name}.log"

    def progress(self, run: Path) -> str:
        """The last percentage that pytest has printed."""
        told = re.findall(rb"\[ *(\d+%)\]", self.log(run).read_bytes())
        return f"{self.name} {told[-1].decode()}" if told else self.name

    def ended(self, run: Path) -> bool:
        """Whether it is over; then all that it recorded is known."""
        status = self.process.poll()
        if status is None:
            return False
        self.status = 0 if status == NO_TESTS and self.may_be_empty else status
        if self._record(run).exists():
            told = json.loads(self._record(run).read_text(encoding="utf-8"))
            self.failed, self.seconds = told["failed"], told["seconds"]
        return True

    def end(self) -> None:
        """End it and all that runs in its session."""
        if self.process is None or self.process.poll() is not None:
            return
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _record(self, run: Path) -> Path:
        return run / f"{self.name}.json"


def _environment(run: Path) -> dict[str, str]:
    # Two threads of each of several processes on two cores only spin.
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {"SLURM_DL_TEST_RUN": str(run), **threads}


# Which files


def _marks(file: Path) -> set[str]:
    """The marks of all tests of a file, from its ``pytestmark``: to collect fewer files."""
    text = file.read_text(encoding="utf-8")
    found = re.search(r"^pytestmark = (\[.*?\n?\]|.*?)$", text, re.MULTILINE | re.DOTALL)
    return set(re.findall(r"mark\.(\w+)", found.group(1))) if found else set()


def _files(*, live: bool, quick: bool) -> list[str]:
    """Test files that can have tests of a lane; its ``-m`` decides."""
    files = []
    for file in sorted((ROOT / "tests").glob("*/test_*.py")):
        marks = _marks(file)
        if "docker" in marks or (quick and marks & set(LEFT_OUT)):
            continue
        if "mark.slurm" in file.read_text(encoding="utf-8") if live else "slurm" not in marks:
            files.append(str(file.relative_to(ROOT)))
    return files


def _git(*argv: str) -> str:
    """What git says; empty where this is no checkout, or the parent is not there."""
    done = subprocess.run(["git", *argv], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _changed(table: selection.Durations) -> list[str]:
    """Test files that the commit changed, the shortest first, within CHANGED_S in all."""
    told = _git("diff", "--name-only", "--diff-filter=d", "HEAD^", "HEAD", "--", "tests/").split()
    files = [f for f in told if re.fullmatch(r"tests/(?!docker/)\w+/test_\w+\.py", f)]
    seconds = {f: sum(table.get(f, {"full": selection.LONG_S}).values()) for f in files}
    left_s = CHANGED_S
    chosen = []
    for file in sorted(files, key=lambda f: seconds[f]):
        left_s -= seconds[file]
        if left_s >= 0:
            chosen.append(file)
    if left_out := sorted(set(files) - set(chosen)):
        _say(f"changed, but too long to be run in addition: {' '.join(left_out)}")
    return chosen


# Which lanes


def _lanes_of_test(seed: str) -> list[Lane]:
    much = ("--share=0.08", f"--share-seed={seed}", "--examples=0.2")
    return [
        Lane(
            "live",
            [*_spread(3), "-m", f"slurm and {QUICK}", *much, *_files(live=True, quick=True)],
        ),
        Lane(
            "computing",
            [*_spread(2), "-m", f"not slurm and {QUICK}", *much, *_files(live=False, quick=True)],
            before=("make", "--silent", "lint"),
            gives_way=True,
        ),
    ]


def _lanes_of_all() -> list[Lane]:
    live = [*_spread(3), "-m", "slurm and not docker", *_files(live=True, quick=False)]
    rest = [*_spread(1), "-m", "not slurm and not docker", *_files(live=False, quick=False)]
    return [
        Lane("docker", ["-m", "docker", "tests/docker"], before=_images()),
        Lane("live", live),
        Lane("computing", rest, before=("make", "--silent", "lint"), gives_way=True),
    ]


def _lanes_of_part(part: str, changed: Sequence[str], table: selection.Durations) -> list[Lane]:
    chosen = (f"--part={part}", f"--changed={','.join(changed)}")
    part_by_unit = selection.part_of(selection.slow_units(table), PARTS, table)
    mine = {unit for unit, n in part_by_unit.items() if f"{n}/{PARTS}" == part}
    live = [*_spread(4), "-m", "slurm and not docker", *_files(live=True, quick=False)]
    rest = [*_spread(1), "-m", "not slurm and not docker", *_files(live=False, quick=False)]
    lanes = [
        Lane("live", [*live, *chosen], may_be_empty=True),
        Lane("computing", [*rest, *chosen], gives_way=True, may_be_empty=True),
    ]
    if any(unit.startswith("tests/docker") for unit in mine):
        releases = [unit.partition("@")[2] for unit in sorted(mine) if "@" in unit]
        before = _images(*releases)
        lanes.append(Lane("docker", ["-m", "docker", "tests/docker", *chosen], before=before))
    return lanes


def _spread(workers: int) -> tuple[str, ...]:
    """Whole files to each worker: the tests of a file share their daemons."""
    return ("-q", "-n", str(workers), "--dist=loadfile", "--no-loadscope-reorder")


def _images(*releases: str) -> tuple[str, ...]:
    """Builds the images, which stay where the tests' engine finds them."""
    return (sys.executable, "tests/engine.py", "docker/images", *releases)


# A run


def _run(lanes: Sequence[Lane], run: Path, limit_s: float) -> None:
    """Run all lanes side by side; print each one's output when it has ended."""
    began_s = told_s = time.monotonic()
    for lane in lanes:
        lane.start(run)
    alive = list(lanes)
    while alive:
        time.sleep(0.5)
        now_s = time.monotonic()
        for lane in [lane for lane in alive if lane.ended(run)]:
            alive.remove(lane)
            _say(f"lane {lane.name} ended after {(now_s - began_s) / 60:.1f} min", run, lane)
        if now_s - began_s > limit_s:
            for lane in alive:
                _say(f"lane {lane.name} is ended: it took more than {limit_s / 60:.0f} min")
                lane.end()
        if alive and now_s - told_s > TELL_EVERY_S:
            told_s = now_s
            _say(f"{(now_s - began_s) / 60:.0f} min: {', '.join(x.progress(run) for x in alive)}")


def _say(text: str, run: Path | None = None, lane: Lane | None = None) -> None:
    print(f"gate: {text}", flush=True)
    if run is not None and lane is not None:
        sys.stdout.buffer.write(lane.log(run).read_bytes())
        sys.stdout.flush()


def _repeat(lanes: Sequence[Lane], run: Path) -> bool:
    """Run what failed once more; whether all of it has passed now."""
    failed = {test: again for lane in lanes for test, again in lane.failed.items()}
    final = sorted(test for test, again in failed.items() if not again)
    unexplained = [
        f"lane {lane.name} (exit status {lane.status})"
        for lane in lanes
        if lane.status not in {0, SOME_FAILED} or (lane.status and not lane.failed)
    ]
    if final or unexplained or len(failed) > MOST_REPEATED:
        _say(f"not repeated: {', '.join(unexplained + final) or f'{len(failed)} tests failed'}")
        return False
    cache = ROOT / ".pytest_cache" / "again" / "v" / "cache" / "lastfailed"
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(json.dumps(dict.fromkeys(failed, True)), encoding="utf-8")
    files = sorted({selection.file_of(test) for test in failed})
    # Fresh processes and sandboxes: a dead daemon of a module would fail each repetition in it.
    chosen = ["-p", "no:xdist", "--last-failed", "--last-failed-no-failures=none", *files]
    docker = any(file.startswith("tests/docker/") for file in files)
    again = Lane("again", chosen, before=_images() if docker else ())
    _run([again], run, LANE_S["test"])
    if again.status != 0:
        return False
    _say("PASSED ONLY WHEN REPEATED:\n  " + "\n  ".join(sorted(failed)))
    return True


def _merged(lanes: Sequence[Lane], table: selection.Durations) -> dict[str, dict[str, float]]:
    """The table of durations, with what these lanes have measured; short files need no place."""
    measured: dict[str, Counter[str]] = defaultdict(Counter)
    for lane in lanes:
        for unit, seconds in lane.seconds.items():
            measured[unit].update(seconds)
    rounded = {
        unit: {
            kind: round(value, 1)
            for kind, value in seconds.items()
            if kind == "full" or value >= selection.LONG_S
        }
        for unit, seconds in measured.items()
    }
    rounded = {unit: seconds for unit, seconds in rounded.items() if seconds}
    return {unit: {**table.get(unit, {}), **rounded.get(unit, {})} for unit in {*table, *rounded}}


@contextmanager
def _directory() -> Iterator[Path]:
    """A short directory of this run; all that is left of it is ended with it."""
    run = new_directory()
    try:
        yield run
    finally:
        logs = ROOT / "build" / "test-logs"
        logs.mkdir(parents=True, exist_ok=True)
        for log in run.glob("*.log"):
            shutil.copy(log, logs)
        sweep(run)


def main() -> None:
    """Run the tests of one command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=sorted(LANE_S))
    parser.add_argument("--part", metavar=f"N/{PARTS}", help="default: by the commit's hash")
    parser.add_argument(
        "--durations", action="store_true", help=f"write {selection.DURATIONS.relative_to(ROOT)}"
    )
    parser.add_argument("files", nargs="*", help="test files, for `some`")
    options = parser.parse_args()

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    table = selection.durations()
    commit = _git("rev-parse", "HEAD") or "0"
    if options.what == "test":
        lanes = _lanes_of_test(commit)
        _say(f"shares of files by --share-seed={commit}")
    elif options.what == "all":
        lanes = _lanes_of_all()
    elif options.what == "some":
        lanes = [Lane("some", [*_spread(2), *options.files])]
    else:
        part = options.part or f"{int(commit[:8], 16) % PARTS + 1}/{PARTS}"
        changed = _changed(table)
        lanes = _lanes_of_part(part, changed, table)
        _say(f"part {part} of what make test leaves out; changed files: {' '.join(changed) or '-'}")

    began_s = time.monotonic()
    passed = False
    with _directory() as run:
        _say(f"directory of the run: {run}")
        try:
            _run(lanes, run, LANE_S[options.what])
            passed = not any(lane.status for lane in lanes) or _repeat(lanes, run)
        except KeyboardInterrupt:
            _say("interrupted")
        finally:
            for lane in lanes:
                lane.end()
    if options.durations:
        text = json.dumps(_merged(lanes, table), indent=0, sort_keys=True)
        selection.DURATIONS.write_text(f"{text}\n", encoding="utf-8")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    _say(
        f"{'passed' if passed else 'FAILED'} after {(time.monotonic() - began_s) / 60:.1f} min;"
        f" {used.ru_utime + used.ru_stime:.0f} CPU seconds"
    )
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()

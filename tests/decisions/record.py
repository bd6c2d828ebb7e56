"""Whether this checkout plans as another commit does, to the byte, on that commit's own tests.

    python tests/decisions/record.py --base COMMIT [unit|engine|slurm|streams ...]

COMMIT's tests and simulations run with COMMIT's package in a temporary worktree, and each distinct
decision is recorded. Then the package of this checkout decides on the same snapshots, as
``dlsim replay FILE --diff`` does. Recordings stay in ``build/decisions/<commit>`` and are used
again, with a log of what made each. The status is 1 if a plan differs, a recording cannot be read,
or something failed while it was made.

A process that is recorded imports this module first (``pytest -p record``): it replaces
`slurm_dl.engine.decide.decide` if ``SLURM_DL_DECISIONS`` names the file to write.
"""

from __future__ import annotations

import argparse
import atexit
import dataclasses
import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import slurm_dl
import slurm_dl.engine.decide as engine
from slurm_dl.engine.settings import Defragment, Settings
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.plan import Plan
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.scheme_registry import SCHEMES
from slurm_dl.policies.base import Policy
from slurm_dl.policies.registry import POLICIES
from slurm_dl.recording.cycles_file import Recording, Setup, Writer
from slurm_dl.recording.snapshot_file import check

ROOT: Final = Path(__file__).resolve().parents[2]
OUTPUT: Final = "SLURM_DL_DECISIONS"
MOST_JOBS: Final = 400
"""Snapshots with more jobs are left out: few, and most of the file."""
PYTEST: Final = ("-m", "pytest", "-q", "-p", "record", "-p", "no:xdist", "--hypothesis-seed=0")
NAMES: Final = ("unit", "engine", "slurm", "streams")


class Recorder:
    """Writes each distinct decision of this process to the recording at *path*."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._decide = engine.decide
        self._writer: Writer | None = None
        self._setup = b""
        self._seen: set[bytes] = set()
        self._counts: Counter[str] = Counter()
        engine.decide = self.decide
        atexit.register(self._close)

    def decide(self, snap: Snapshot, policy: Policy, settings: Settings) -> Plan:
        """The engine's plan."""
        plan = self._decide(snap, policy, settings)
        self._counts[self._record(snap, policy, settings, plan)] += 1
        return plan

    def _record(self, snap: Snapshot, policy: Policy, settings: Settings, plan: Plan) -> str:
        """Write a decision if it is new; what became of it, in words."""
        if len(snap.jobs) > MOST_JOBS:
            return f"with more than {MOST_JOBS} jobs"
        try:
            check(snap)
            setup = Setup.of(policy, settings)
            text, content = written(self._path.with_suffix(".one"), setup, snap, type(policy))
        except (ConfigError, TypeError, ValueError):
            return "that a recording cannot hold"
        key = hashlib.sha256(text + content).digest()
        if key in self._seen:
            return "repeated"
        self._seen.add(key)
        if self._writer is None:
            self._writer = Writer(self._path, setup)
        elif text != self._setup:
            self._writer.change(setup)
        self._setup = text
        self._writer.write(snap, plan)
        return "recorded"

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        counts = [f"{n} {what}" for what, n in sorted(self._counts.items())]
        print("decisions:", ", ".join(counts) or "none")


def written(path: Path, setup: Setup, snap: Snapshot, kind: type[Policy]) -> tuple[bytes, bytes]:
    """The lines of a recording of one cycle, made at *path* for a moment.

    Raises:
        ConfigError, TypeError, ValueError: Policy and settings do not come back from it, as a
            policy or a scheme that only a test knows.
    """
    path.unlink(missing_ok=True)
    with Writer(path, setup) as writer:
        writer.write(snap)
    with Recording(path) as recording:
        again = recording.first
    header, _, cycle = path.read_bytes().partition(b"\n")
    path.unlink()
    if type(again.make()) is not kind or again.settings != setup.settings:
        msg = f"{setup.policy}: another policy, or other settings, come back"
        raise ValueError(msg)
    return header, cycle


def simulate_policies() -> None:
    """Every policy on the simulated Slurm."""
    from slurm_dl.cli.dlsim.command import dlsim  # noqa: PLC0415 - after decide is replaced

    options = ["traces/tiresias/60_job.csv", "--cluster", "2x4", "--costs", "slurm"]
    for name in sorted(POLICIES):
        dlsim.main(["run", *options, "--policy", name], standalone_mode=False)


def run_streams() -> None:
    """The streams of tests/streams.py; the steered one with each scheme, moving jobs or not."""
    import streams  # noqa: PLC0415 - after decide is replaced

    for make in streams.STREAMS.values():
        make()
    for name in sorted(SCHEMES):
        placement = dataclasses.replace(streams.STEERED.placement, scheme=SCHEMES[name]())
        for moves in (Defragment(), Defragment(enabled=True, after_s=20.0, free_nodes=1)):
            limits = dataclasses.replace(streams.STEERED, placement=placement, defragment=moves)
            for seed in range(1, 9):
                streams.fake_cluster(settings=limits, seed=seed)


def unit_tests(tree: Path) -> list[str]:
    """The unit tests that decide, but for those of replay itself."""
    decides = re.compile(r"\bdecide\(|\brun_cycle\b")
    return [
        str(path.relative_to(tree))
        for path in sorted((tree / "tests/unit").glob("test_*.py"))
        if path.name != "test_replay.py" and decides.search(path.read_text("utf-8"))
    ]


def record(name: str, tree: Path, out: Path) -> Path:
    """Make a recording in *out* with the tests and the package of *tree*.

    Returns:
        ``NAME.jsonl.gz``; if anything failed ``NAME.part.jsonl.gz``, which is not used again.
    """
    arguments = {
        "unit": [*PYTEST, *unit_tests(tree)],
        "engine": [*PYTEST, "tests/sim/test_one_engine.py"],
        "slurm": ["-c", "import record; record.simulate_policies()"],
        "streams": ["-c", "import record; record.run_streams()"],
    }[name]
    part, log = out / f"{name}.part.jsonl.gz", out / f"{name}.log"
    part.unlink(missing_ok=True)
    path = os.pathsep.join(map(str, (tree, tree / "tests", Path(__file__).parent)))
    env = {**os.environ, OUTPUT: str(part), "PYTHONPATH": path}
    began_s = time.monotonic()
    with log.open("wb") as file:
        argv = [sys.executable, *arguments]
        done = subprocess.run(argv, cwd=tree, env=env, stdout=file, stderr=file, check=False)
    lines = log.read_text("utf-8", errors="replace").splitlines()
    print(f"{name}: {lines[-1]}; {time.monotonic() - began_s:.0f} s", flush=True)
    if done.returncode == 0:
        return part.rename(out / f"{name}.jsonl.gz")
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))] or lines[-6:]
    print(*failed, f"status {done.returncode}, see {log}", sep="\n  ", flush=True)
    return part


def is_equal(path: Path) -> bool:
    """Decide once more on all that is recorded at *path*, and print what differs first."""
    from slurm_dl.recording import replay_report as report  # noqa: PLC0415 - it imports decide

    began_s, first = time.monotonic(), ""
    summary, choice = report.ReplaySummary(), report.ReplayPolicy.of(None, ())
    try:
        with Recording(path) as recording:
            for cycle in report.replayed(recording, choice, path=path, compared=True):
                summary.add(cycle)
                if not first and not cycle.is_equal:
                    difference = cycle.differences()[0]
                    first = f"{path}:{cycle.recorded.line}: {cycle.policy.name}: {difference}"
    except ConfigError as err:
        first = str(err)
    counted = f"{summary.cycles} decisions, {summary.different} differ"
    told = f"{path.name.partition('.')[0]}: {counted}; {time.monotonic() - began_s:.0f} s"
    print(told, *filter(None, [first]), sep="\n  ", flush=True)
    return not first


def git(*arguments: str) -> str:
    """What git says in this checkout, stripped.

    Raises:
        CalledProcessError: It failed; its message is on standard error.
    """
    argv = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """*commit*, checked out in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="sdl-decisions-") as parent:
        tree = Path(parent) / commit
        git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def require_package(tree: Path) -> None:
    """Refuse to go on with the package of another checkout than *tree*."""
    path = Path(slurm_dl.__file__)
    assert path.is_relative_to(tree), f"{path} is not in {tree}: set PYTHONPATH"


def main() -> int:
    """Record what is missing, then compare; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", metavar="COMMIT", default="HEAD~1", help="default: %(default)s")
    parser.add_argument("--out", metavar="DIR", type=Path, default=ROOT / "build/decisions")
    parser.add_argument("names", nargs="*", metavar="|".join(NAMES), help="default: all of them")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(NAMES):
        parser.error(f"no such recording: {', '.join(sorted(unknown))}")
    require_package(ROOT)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the worktree is removed
    try:
        commit = git("rev-parse", "--verify", "--short", f"{asked.base}^{{commit}}")
    except subprocess.CalledProcessError:
        parser.error(f"no such commit: {asked.base}")
    out: Path = asked.out.resolve() / commit
    out.mkdir(parents=True, exist_ok=True)
    print(f"recordings of {commit} in {out}", flush=True)
    whole = {name: out / f"{name}.jsonl.gz" for name in asked.names or NAMES}
    made = dict(whole)
    if missing := [name for name, path in whole.items() if not path.exists()]:
        with worktree(commit) as tree:
            made |= {name: record(name, tree, out) for name in missing}
    equal = [is_equal(path) for path in made.values()]
    return 0 if all(equal) and made == whole else 1


if output := os.environ.get(OUTPUT):
    require_package(Path.cwd())
    Recorder(Path(output))
if __name__ == "__main__":
    sys.exit(main())

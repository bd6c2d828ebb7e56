"""The simulator against a real Slurm: the same workload in both, without dlschedd and with it.

For each seed a workload of some sixty jobs is played on a sandbox of 4 nodes x 4 GPUs, about five
minutes each time, and simulated with the costs that ``measure_slurm_costs.py`` found. Real runs are
kept in the results file: what is there already is not played again. Needs root and Debian's Slurm
packages; three seeds take forty minutes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import fidelity_real as real
import fidelity_report
import measure
from fidelity_workload import Workload, workload

ARMS: Final[Mapping[str, Callable[[Workload, Callable[[str], None]], real.Played]]] = {
    "plain": real.play_plain,
    "discrete_las": real.play_scheduled,
}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="SEED")
    parser.add_argument("--jobs", type=int, default=64, help="of each workload (default: 64)")
    parser.add_argument(
        "--results",
        type=Path,
        default=measure.RESULTS / "fidelity-real.json",
        help="where real runs are kept (default: %(default)s)",
    )
    parser.add_argument(
        "--plots", type=Path, metavar="DIRECTORY", help="draw the figures there as PNG and SVG"
    )
    options = parser.parse_args()
    kept = _Kept(options.results, options.jobs)
    for seed in options.seeds:
        for arm, play in ARMS.items():
            if kept.has(seed, arm):
                continue
            measure.say(f"seed {seed}, {arm}, for real")
            kept.add(seed, arm, play(workload(seed, options.jobs), _say))
    runs = [
        fidelity_report.Run(seed=seed, arm=arm, real=kept.get(seed, arm))
        for arm in ARMS
        for seed in options.seeds
    ]
    fidelity_report.report(runs, jobs=options.jobs, plots=options.plots)


class _Kept:
    """Real runs in a file, each written as soon as it is over."""

    def __init__(self, path: Path, jobs: int) -> None:
        self._path = path
        self._prefix = f"{jobs} jobs"
        text = path.read_text(encoding="utf-8") if path.exists() else "{}"
        self._tree: dict[str, dict[str, object]] = json.loads(text)

    def has(self, seed: int, arm: str) -> bool:
        """Whether this one was played."""
        return self._name(seed, arm) in self._tree

    def get(self, seed: int, arm: str) -> real.Played:
        """What was measured; it must be there."""
        return real.Played.of(self._tree[self._name(seed, arm)])

    def add(self, seed: int, arm: str, played: real.Played) -> None:
        """Keep one more."""
        self._tree[self._name(seed, arm)] = {**played.as_json(), "machine": measure.machine()}
        self._path.parent.mkdir(exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._tree, indent=1) + "\n", encoding="utf-8")
        new.replace(self._path)

    def _name(self, seed: int, arm: str) -> str:
        return f"{self._prefix}, seed {seed}, {arm}"


def _say(text: str) -> None:
    measure.say(f"  {text}")


if __name__ == "__main__":
    main()

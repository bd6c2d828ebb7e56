"""The tables of docs/evaluate/gaming.md and docs/operate/incentives.md.

``python -m tools.docs.gaming NAME before/x.json after/x.json`` writes table NAME of gaming.md from
what ``dlsim game --json FILE`` wrote; a file is called by its folder. ``python -m tools.docs.gaming
prices`` runs the simulations of the table of prices in incentives.md, about five minutes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from slurm_dl.cli.dlsim.game import spread
from slurm_dl.experiments import game, grid
from slurm_dl.experiments.game import Game, Spread
from slurm_dl.experiments.game_strategies import BASES, STRATEGIES
from slurm_dl.experiments.game_workload import Crowd
from slurm_dl.experiments.grid import Workload
from slurm_dl.experiments.simulation_run import PolicySpec
from slurm_dl.traces.format_registry import read_trace
from tools.docs.comparison import DOCS
from tools.docs.page_parts import table_row

PAGE: Final = DOCS / "gaming.md"
PRICES: Final = DOCS.parent / "operate" / "incentives.md"
TRACES: Final = {"itp10": "cluster10.csv", "itp01": "cluster01.csv.gz"}
POLICIES: Final = ("discrete_las", "learned_gittins")
LOADS: Final = (1.4, 1.0)
WHO: Final = {
    "can_jct_s": "who opt in",
    "cannot_jct_s": "who cannot",
    "others_jct_s": "all honest users",
}


def _cell(figure: Mapping[str, float | None]) -> str:
    values = {name: float("nan") if at is None else at for name, at in figure.items()}
    return spread(Spread(**values))


def table(files: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Lines of the table of strategies.

    Args:
        files: What ``--json`` wrote, by what the table is to call it.
    """
    at = {
        (row["policy"], name, row["strategy"]): row
        for name, told in files.items()
        for row in told["rows"]
    }
    columns = [(policy, name) for policy in dict.fromkeys(key[0] for key in at) for name in files]
    heads = [f"`{policy}`, {name}: {what}" for policy, name in columns for what in ("gain", "loss")]
    yield table_row("strategy", *heads)
    yield table_row("---", *["---"] * len(heads)).replace(" ", "")
    for strategy, about in STRATEGIES.items():
        found = [at.get((*column, strategy)) for column in columns]
        if strategy not in BASES and any(found):
            cells = [
                "-" if row is None else _cell(row[name])
                for row in found
                for name in ("gain", "loss")
            ]
            yield table_row(about.title, *cells)


def prices(seeds: int = 5) -> Iterator[str]:
    """Lines of the table of what honest users pay where commitment counts."""
    yield table_row("trace", "load", "policy", *WHO.values())
    yield table_row(*["---"] * 6).replace(" ", "")
    with tempfile.TemporaryDirectory() as folder:
        for trace, file in TRACES.items():
            jobs = read_trace(Path("traces/elasticflow") / file, None)
            workload = Workload(cluster="4x8", trace=jobs)
            found = {}
            for word in ("counted", "ignored"):
                config = Path(folder) / f"{word}.yaml"
                config.write_text(
                    f"manage: {{partitions: [gpu]}}\npreemption: {{commitment: {word}}}\n", "utf-8"
                )
                played = Game(
                    workloads={"": workload}, crowd=Crowd(opt_outs=0.2), config=str(config)
                )
                specs = [PolicySpec(policy=name) for name in POLICIES]
                cells = game.cells(specs, (), LOADS, seeds)
                found[word] = dict(grid.run(played, cells, played.figures, processes=2))
            for load in LOADS:
                for policy in POLICIES:
                    of_both = [
                        (found["counted"][cell], found["ignored"][cell])
                        for cell in found["counted"]
                        if (cell.load, cell.policy.policy) == (load, policy)
                    ]
                    yield table_row(trace, f"{load:g}", f"`{policy}`", *_paid(of_both))


def _paid(pairs: Sequence[tuple[Any, Any]]) -> Iterator[str]:
    for name in WHO:
        yield spread(Spread.of([one[name] / other[name] - 1 for one, other in pairs]))


def _written(page: Path, name: str, lines: Iterator[str]) -> None:
    """Put *lines* between the marks *name* of *page*."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = page.read_text("utf-8").partition(begin)
    _, _, after = rest.partition(end)
    made = "".join(f"{line}\n" for line in lines)
    page.write_text(f"{before}{begin}\n{made}\n{end}{after}", "utf-8")


def main(name: str, *paths: str) -> None:
    """Write one table."""
    if name == "prices":
        _written(PRICES, name, prices())
        return
    files = {Path(path).parent.name: json.loads(Path(path).read_text("utf-8")) for path in paths}
    _written(PAGE, name, table(files))


if __name__ == "__main__":
    main(*sys.argv[1:])

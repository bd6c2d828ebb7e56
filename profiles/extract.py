"""Cut the few figures that the profiles need out of published data, with origin and licence.

    python profiles/extract.py GAVEL.json CHRONUS.json POLLUX_TRACES
    python profiles/extract.py GAVEL.json

GAVEL.json is ``scheduler/simulation_throughputs.json`` of stanford-futuredata/gavel, CHRONUS.json
the placement slowdowns of S-Lab-System-Group/ChronusArtifact as JSON, POLLUX_TRACES
``simulator/traces`` of petuum/adaptdl (branch osdi21-artifact). What comes out lies in
``profiles/published`` and is all that ``build.py`` reads. With GAVEL.json alone the speeds of all
pairs of jobs come out, which lie beside Gavel's speeds in ``slurm_dl/traces/formats``.
"""

# ruff: noqa: INP001 - a script beside its data, no package

from __future__ import annotations

import ast
import csv
import json
import sys
from pathlib import Path

GAVEL = {
    "resnet18": ("ResNet-18 (batch size 128)", 128),
    "resnet50": ("ResNet-50 (batch size 64)", 64),
    "transformer": ("Transformer (batch size 64)", 64),
    "lstm": ("LM (batch size 20)", 20),
    "recommendation": ("Recommendation (batch size 2048)", 2048),
    "a3c": ("A3C", None),
    "cyclegan": ("CycleGAN", None),
}
"""By profile: Gavel's name for it, and the samples of one GPU in one step."""

CHRONUS = {
    "alexnet": "alexnet",
    "vgg16": "vgg16",
    "resnet101": "resnet101",
    "mobilenet_v2": "mobilenet_v2",
    "inception3": "inception_v3",
}
POLLUX = {
    "resnet18": ("cifar10", 129),
    "resnet50": ("imagenet", 115),
    "bert-base": ("bert", 12),
    "deepspeech2": ("deepspeech2", 20),
    "ncf": ("ncf", 513),
}
"""By profile: Pollux's name for it, and the samples of one GPU in one step."""

PAIRS_ON = "v100"
FAR = "_unconsolidated"


def gavel(path: Path) -> dict[str, object]:
    """Steps a second by GPU type, shape and model, and what is left of it beside another."""
    table = json.loads(path.read_text())
    speeds, beside = [], {}
    for model, (name, batch) in GAVEL.items():
        for kind, rows in table.items():
            for workers in (1, 2, 4, 8):
                row = rows.get(f"('{name}', {workers})")
                if row is None or not row["null"] or (kind.endswith(FAR) and workers == 1):
                    continue
                shape = f"{workers}x1" if kind.endswith(FAR) else f"1x{workers}"
                speeds.append(
                    {
                        "model": model,
                        "gpu_type": kind.removesuffix(FAR),
                        "shape": shape,
                        "batch": batch,
                        # Gavel counts the steps of all workers together.
                        "steps_per_s": row["null"] / workers,
                    }
                )
        alone = table[PAIRS_ON][f"('{name}', 1)"]
        beside[model] = {
            other: alone[f"('{theirs}', 1)"][0] / alone["null"]
            for other, (theirs, _) in GAVEL.items()
            if f"('{theirs}', 1)" in alone
        }
    return {
        "origin": "stanford-futuredata/gavel@c4fa400 scheduler/simulation_throughputs.json",
        "licence": "MIT, copyright (c) 2020 Stanford Future Data Systems (LICENSE-gavel)",
        "speeds": speeds,
        "beside_on": PAIRS_ON,
        "beside": beside,
    }


def gavel_pairs(path: Path) -> str:
    """Speeds of both jobs of each pair that fits, relative to alone; JSON, a line for each kind.

    In Gavel's table jobs of a pair have the same number of GPUs, and the pair is the same from
    both sides.
    """
    table = json.loads(path.read_text())
    names = sorted(table["v100"], key=ast.literal_eval)
    lines = []
    for kind in ("v100", "p100", "k80"):
        rows = table[kind]
        for i, one in enumerate(names):
            pairs = []
            for j in range(i, len(names)):
                both = rows[one].get(names[j], (0, 0))
                if min(both) > 0:
                    alone = rows[one]["null"], rows[names[j]]["null"]
                    pairs += [j, *(round(b / a, 10) for b, a in zip(both, alone, strict=True))]
            if pairs:
                lines.append(f"  {json.dumps([kind, i, *pairs], separators=(',', ':'))}")
    jobs = ",\n".join(f"  {json.dumps(ast.literal_eval(name))}" for name in names)
    origin = (
        "stanford-futuredata/gavel@c4fa400 scheduler/simulation_throughputs.json, keys v100, p100 "
        "and k80: pairs of jobs of one number of GPUs on the same GPUs, consolidated. jobs: job "
        "type and number of GPUs. pairs: GPU type, first job, then for each second job its number "
        "and the speeds of the first and of the second, relative to alone; pairs that do not fit "
        "are left out"
    )
    licence = "MIT, Copyright (c) 2020 Stanford Future Data Systems; see traces/gavel/LICENSE"
    head = f' "origin": {json.dumps(origin)},\n "licence": {json.dumps(licence)},\n'
    body = ",\n".join(lines)
    return f'{{\n{head} "jobs": [\n{jobs}\n ],\n "pairs": [\n{body}\n ]\n}}\n'


def chronus(path: Path) -> dict[str, object]:
    """Speed relative to one node, by GPUs and nodes."""
    table = json.loads(path.read_text())
    rates = [
        {"model": model, "shape": f"{nodes}x{int(gpus) // int(nodes)}", "rate": rate}
        for model, name in CHRONUS.items()
        for gpus, row in table[name].items()
        for nodes, rate in sorted(row.items(), key=lambda item: int(item[0]))
        if int(gpus) % int(nodes) == 0
    ]
    return {
        "origin": "S-Lab-System-Group/ChronusArtifact@bc7e15f (placement slowdowns)",
        "licence": "MIT, copyright (c) 2020 WeiGao (LICENSE-chronus)",
        "rates": rates,
    }


def pollux(directory: Path) -> dict[str, object]:
    """Steps a second on 4-GPU T4 nodes, for shapes with as many GPUs on each node."""
    speeds = []
    for model, (name, batch) in POLLUX.items():
        with (directory / name / "placements.csv").open() as file:
            for row in csv.DictReader(file):
                digits = row["placement"]
                if len(set(digits)) == 1 and int(row["local_bsz"]) == batch:
                    speeds.append(
                        {
                            "model": model,
                            "gpu_type": "t4",
                            "shape": f"{len(digits)}x{digits[0]}",
                            "batch": batch,
                            "steps_per_s": 1 / float(row["step_time"]),
                        }
                    )
    return {
        "origin": "petuum/adaptdl@c793c70 (osdi21-artifact) simulator/traces/*/placements.csv",
        "licence": "Apache-2.0",
        "speeds": speeds,
    }


def main() -> None:
    """Write the three extracts, or that of pairs."""
    if len(sys.argv) == 2:  # noqa: PLR2004 - one file
        formats = Path(__file__).parents[1] / "slurm_dl/traces/formats"
        (formats / "gavel_pairs.json").write_text(gavel_pairs(Path(sys.argv[1])))
        return
    here = Path(__file__).parent / "published"
    paths = [Path(argument) for argument in sys.argv[1:4]]
    for extract, path in zip((gavel, chronus, pollux), paths, strict=True):
        text = json.dumps(extract(path), indent=1) + "\n"
        (here / f"{extract.__name__}.json").write_text(text)


if __name__ == "__main__":
    main()

"""Records what a real Slurm prints about a varied queue, for the tests of the reader.

Run it as root where the Slurm to be recorded is installed, with the package and ``tests`` on the
path; docs/develop/testing.md has the command for the releases in the images. It starts a private
cluster, fills it with the cases of `contract.cases`, and writes the raw output of the reader's own
commands to ``slurm-<year>.<month>/`` beside this file or in the directory named, with what is
expected of each job beside it. The expectations are written by hand and the same for every release.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from contract.cases import CLUSTER, NODES, Case
from contract.described import wrong_in
from contract.filling import cases_of, fill, own_cluster, release_of
from contract.on_slurm import looked_at

from slurm_dl.model.errors import ClusterError
from slurm_dl.sandbox import Sandbox
from slurm_dl.sandbox.process_control import eventually
from slurm_dl.slurm.cluster import SlurmCluster
from slurm_dl.slurm.read.conditions import CONDITION_ARGUMENTS
from slurm_dl.slurm.read.node_reader import node_arguments
from slurm_dl.slurm.read.queue_reader import folded_arguments
from slurm_dl.slurm.read.record_parser import job_fields, queue_arguments
from slurm_dl.slurm.tool_runner import Slurm

NONCE: Final = "xrecorded0"
HAS_BLOCKS: Final = (23, 11)
"""The first series with topology/block."""


def main() -> None:
    """Fill a cluster and write down what it says."""
    into = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    with own_cluster() as box:
        release = release_of(box)
        folder = into / f"slurm-{release.major}.{release.minor:02}"
        folder.mkdir(exist_ok=True)
        cases = cases_of(release)
        ids = fill(box, cases)
        problems = _settle(box, cases, ids)
        _write(box, folder, cases)
    if (release.major, release.minor) >= HAS_BLOCKS:
        with own_cluster(replace(CLUSTER, topology="block")) as box:
            (folder / "blocks.txt").write_bytes(_raw(box, "scontrol", "show", "topology"))
    for problem in problems:
        sys.stdout.write(f"not as expected: {problem}\n")
    sys.stdout.write(f"{folder}: Slurm {release}, {len(cases)} cases\n")


def _settle(box: Sandbox, cases: dict[str, Case], ids: dict[str, str]) -> list[str]:
    """Wait until the reader sees all as expected; what it does not after a while."""
    cluster = SlurmCluster(Slurm(slurm_conf=Path(box.env["SLURM_CONF"])), max_grace_s=600)
    problems: list[str] = []

    def as_expected() -> bool:
        problems[:] = []
        seen = looked_at(cluster)
        rows = {text.label: seen.jobs.row_of()[job] for job, text in seen.texts.items()}
        for name, case in cases.items():
            for end, record in case.records.items():
                row = rows.get(ids[name] + end)
                wrong = ["it is not there"] if row is None else wrong_in(seen, row, record)
                problems.extend(f"{name[:20]!r}{end}: {what}" for what in wrong)
        return not problems

    with suppress(ClusterError):
        eventually(as_expected, 60.0, 1.0)
    return problems


def _write(box: Sandbox, folder: Path, cases: dict[str, Case]) -> None:
    show = ("scontrol", "show")
    now_s = int(_raw(box, "date", "+%s"))
    outputs = {
        "squeue": _raw(box, "squeue", *queue_arguments(job_fields(release_of(box)), NONCE)),
        "arrays": _raw(box, "squeue", *folded_arguments(NONCE)),
        "excluded": _raw(box, "squeue", *CONDITION_ARGUMENTS),
        "sinfo": _raw(box, "sinfo", *node_arguments(NONCE)),
        "node": _raw(box, *show, "node", "--all", "--oneliner"),
        "partition": _raw(box, *show, "partition", "--all", "--oneliner"),
        "topology": _raw(box, *show, "topology"),
        "reservation": _raw(box, *show, "reservation", "--oneliner"),
        "job": _raw(box, *show, "job", "--details", "--oneliner"),
        "sprio": _raw(box, "sprio", "--noheader", "--format=%i %S"),
        "config": _raw(box, *show, "config"),
    }
    for name, output in outputs.items():
        (folder / f"{name}.txt").write_bytes(output)
    expected = {
        "nonce": NONCE,
        "now_s": now_s,
        "nodes": NODES,
        "jobs": [
            {"name": name, "label": label, "expected": record}
            for name, case in cases.items()
            for label, record in case.records.items()
        ],
    }
    text = json.dumps(expected, indent=1, sort_keys=True)
    (folder / "expected.json").write_text(text + "\n", encoding="utf-8")


def _raw(box: Sandbox, *argv: str) -> bytes:
    env = {
        **box.env,
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C",
        "TZ": "UTC",
        "SLURM_TIME_FORMAT": "%s",
        "SLURM_BITSTR_LEN": "0",
    }
    return subprocess.run(argv, env=env, capture_output=True, check=True, timeout=30).stdout


if __name__ == "__main__":
    main()

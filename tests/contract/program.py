"""The contract as a program, for machines with a Slurm and without a test runner.

It starts a private Slurm as root, fills it, reads it with each reader that is named, tries each
action through each, and prints one JSON object: the release, and by reader what is wrong with which
case and action. Run it with the package and ``tests`` on the path::

    python -m contract.program cli pyslurm
"""

from __future__ import annotations

import json
import sys
from typing import Any

from contract.actions import ON_SLURM
from contract.filling import cases_of, fill, own_cluster, release_of
from contract.on_slurm import OnSlurm, backend, differences, wrong_action, wrong_jobs
from contract.subject import SMALL

from slurm_dl.model.errors import ClusterError
from slurm_dl.slurm.pyslurm.reader import Wanted


def main() -> None:
    """Hold the Slurm that is installed to the contract."""
    readers: list[Any] = sys.argv[1:] or ["cli"]
    said = {"readers": {reader: {"jobs": {}, "actions": {}} for reader in readers}}
    said |= _jobs(readers, said["readers"])
    _actions(readers, said["readers"])
    sys.stdout.write(json.dumps(said) + "\n")


def _jobs(readers: list[Wanted], into: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Read one filled cluster by each of *readers*; its release, and where the readings differ."""
    reported = {}
    with own_cluster() as box:
        release = release_of(box)
        cases = cases_of(release)
        ids = fill(box, cases)
        for reader in readers:
            with backend(box, reader) as cluster:
                into[reader]["jobs"], reported[reader] = wrong_jobs(cluster, cases, ids)
    first, *others = readers
    return {
        "release": str(release),
        "differences": {
            reader: differences(reported[first], reported[reader]) for reader in others
        },
    }


def _actions(readers: list[Wanted], into: dict[str, dict[str, Any]]) -> None:
    for reader in readers:
        with own_cluster(SMALL) as box, backend(box, reader) as cluster:
            subject = OnSlurm(box, cluster)
            into[reader]["actions"] = {name: wrong_action(subject, name) for name in ON_SLURM}


if __name__ == "__main__":
    try:
        main()
    except ClusterError as err:
        sys.exit(f"contract: {err}")

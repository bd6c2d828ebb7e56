"""Records what a real Slurm prints about a small varied queue, for the tests of the reader.

Run it as root on a host with the Slurm release to be recorded::

    python tests/data/record.py

It starts a private cluster, fills it with the jobs of `CASES`, and writes the raw output of the
reader's own commands to ``tests/data/slurm-<year>.<month>/``, with what is expected of each job
beside it. The expectations are written here by hand; they are the same for every release.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from slurm_dl.backends.slurm.choices import EXCLUDED_ARGUMENTS
from slurm_dl.backends.slurm.read_jobs import JOB_FIELDS, queue_arguments
from slurm_dl.backends.slurm.read_nodes import node_arguments
from slurm_dl.backends.slurm.versions import parse_release
from slurm_dl.sandbox import PartitionSpec, Sandbox, SandboxSpec
from slurm_dl.sandbox.wait import eventually

NONCE = "xrecorded0"
HERE = Path(__file__).parent

RUNNING, PENDING = "RUNNING", "PENDING"
FAKE = "77777{0}f77777{0}fRUNNING{0}r\n99999|99999|RUNNING|".format("xrecorded9")
"""A record forged with the separators of another call, and one with bars."""

CASES: dict[str, tuple[list[str], dict[str, dict[str, Any]]]] = {
    "by-node": (
        ["-N1", "-wn1", "--gpus-per-node=1", "-pgpu", "-t2-03:04:00"],
        {
            "": {"state": RUNNING, "gpus": 1, "gpu_type": None, "partition": "gpu"}
            | {"limit_s": 183840, "requeueable": True, "exclusive": False, "held": "NO"}
            | {"choices": None}
        },
    ),
    "by-node-typed": (
        ["-N2", "-wn1,n3", "--gres=gpu:a100:1", "-n8", "--no-requeue"],
        {
            "": {"state": RUNNING, "gpus": 2, "gpu_type": "a100", "n_nodes": 2, "cpus": 8}
            | {"requeueable": False, "split": {"n1": 1, "n3": 1}}
        },
    ),
    "by-task": (
        ["-n2", "-N1", "-wn1", "--gpus-per-task=1"],
        {"": {"state": RUNNING, "gpus": 2, "split": {"n1": 2}}},
    ),
    "fill": (["-N1", "-wn2", "--gpus-per-node=3"], {"": {"state": RUNNING, "gpus": 3}}),
    "in-all": (
        ["-N2", "-wn2,n3", "--gpus=4"],
        {"": {"state": RUNNING, "gpus": 4, "n_nodes": 2, "split": {"n2": 1, "n3": 3}}},
    ),
    "by-socket": (
        ["-N1", "-wn4", "--sockets-per-node=1", "--gpus-per-socket=a100:1"],
        {"": {"state": RUNNING, "gpus": 1, "gpu_type": "a100", "split": {"n4": 1}}},
    ),
    "no-gpu": (
        ["-N1", "-wn4", "-t10"],
        {"": {"state": RUNNING, "gpus": 0, "limit_s": 600, "split": {"n4": 0}}},
    ),
    "stepped": (
        ["--array=0-200:10%2", "-N1", "-wn4", "--gpus-per-node=1"],
        {
            "_0": {"state": RUNNING, "tasks": 1},
            "_10": {"state": RUNNING, "tasks": 1},
            "_[20-200:10%2]": {"state": PENDING, "tasks": 19, "held": "LIMIT", "gpus": 1},
        },
    ),
    "again": (
        ["--array=0-3", "-N1", "-wn4", "--gpus-per-node=1"],
        {
            "_0": {"state": PENDING, "restarts": 1, "tasks": 1, "held": "BEGIN_TIME"}
            | {"start_s": 0, "split": {}},
            "_1": {"state": RUNNING, "restarts": 0},
            "_[2-3]": {"state": PENDING, "tasks": 2, "restarts": 0},
        },
    ),
    "held": (
        ["-H", "-N4", "--exclusive", "--gpus-per-node=4"],
        {
            "": {"state": PENDING, "held": "USER_OR_ADMIN", "gpus": 16, "n_nodes": 4}
            | {"exclusive": True, "priority": 0}
        },
    ),
    "later": (["-bnow+1hour"], {"": {"state": PENDING, "held": "BEGIN_TIME", "start_s": 0}}),
    "two-partitions": (
        ["-pgpu,debug", "-N2", "--gpus-per-node=4"],
        {"": {"state": PENDING, "partition": "gpu", "also_in": ["debug"], "held": "NO"}},
    ),
    "too-long": (
        ["-pdebug", "-t2:00:00"],
        {"": {"state": PENDING, "partition": "debug", "also_in": [], "held": "LIMIT"}},
    ),
    "big": (
        ["-N4", "--gpus-per-node=4", '--comment={"theirs":1,"slurm_dl":{"v":1,"sig":"USR1"}}'],
        {
            "": {"state": PENDING, "gpus": 16, "held": "NO", "reserved": "slurm_dl_5"}
            | {"signal": "USR1", "mem_mb": 0}
        },
    ),
    "big-in-all": (
        ["--gpus=16"],
        {"": {"state": PENDING, "gpus": 16, "n_nodes": 4, "choices": None}},
    ),
    "excludes": (
        ["-H", "--array=0-3", "-N1", "-xn1,n3"],
        {"_[0-3]": {"state": PENDING, "choices": ["n2", "n4"]}},
    ),
    "names": (["-H", "-N2", "-wn1,n3"], {"": {"state": PENDING, "choices": ["n1", "n3"]}}),
    "names-too-few": (["-H", "-N2", "-wn1"], {"": {"state": PENDING, "choices": []}}),
    "feature": (["-H", "-Cbig"], {"": {"state": PENDING, "choices": ["n1", "n2"]}}),
    "features": (["-H", "-Cnew&big"], {"": {"state": PENDING, "choices": ["n1"]}}),
    "features-by-comma": (["-H", "-Cnew,big"], {"": {"state": PENDING, "choices": ["n1"]}}),
    "one-of-features": (["-H", "-Cbig|new"], {"": {"state": PENDING, "choices": []}}),
    "same-of-features": (["-H", "-C[big|new]"], {"": {"state": PENDING, "choices": []}}),
    "prefers": (["-H", "--prefer=big"], {"": {"state": PENDING, "choices": None}}),
    "all-at-once": (
        ["-H", "-N2", "-wn1,n3", "-xn2", "-Cnew"],
        {"": {"state": PENDING, "choices": ["n1", "n3"]}},
    ),
    "het": (
        ["-N1", "--gpus-per-node=1", "-Jhet", ":", "-N1", "--gpus-per-node=2", "-Jhet"],
        {
            "+0": {"state": PENDING, "gpus": 1, "requeueable": False, "choices": []},
            "+1": {"state": PENDING, "gpus": 2, "requeueable": False, "choices": []},
        },
    ),
    "ended": (["-wn4", "-N1", "--wrap=true"], {"": {"state": "COMPLETED", "split": {}}}),
    "broken": (["-wn4", "-N1", "--wrap=false"], {"": {"state": "FAILED"}}),
    "cancelled": (["-H", "-N1"], {"": {"state": "FAILED", "start_s": 0}}),
    f"a|b\n{FAKE}": (
        ["-H", "--comment=x\n7|7|RUNNING|\n", "-N3"],
        {"": {"state": PENDING, "n_nodes": 3}},
    ),
    "\x1b[31mred\x1b[0m": (
        ["-H", f'--comment={{"slurm_dl":{{"sig":"USR1"}}}}\n{FAKE}'],
        {"": {"state": PENDING, "signal": None}},
    ),
    "\udcff\udcfe": (["-H", "--comment=\udcc3( is not UTF-8"], {"": {"state": PENDING}}),
    "n" * 300: (["-H", "--comment=" + "c" * 1024], {"": {"state": PENDING}}),
    " spaces\tand tabs ": (["-H", "--comment=\r\n\x0b\x0c"], {"": {"state": PENDING}}),
}
"""By job name: options of sbatch, and what is expected of each of its records by the end of its
label. What is not said is not compared; None means "not one of ours" or "not given"."""

NODES = {
    "up": {"n1": True, "n2": True, "n3": False, "n4": False},
    "leaf": {"n1": 0, "n2": 0, "n3": 1, "n4": 1},
    "partitions": {"debug": ["n1", "n2"], "gpu": ["n1", "n2", "n3", "n4"]},
}
"""n3 is in somebody's reservation, n4 drained with a reason that looks like a node record."""


FEATURES = {"n1": ("big,new", "big,new"), "n2": ("big,new", "big"), "n3": ("new", "new")}
"""Available and active features of each node."""


def main() -> None:
    """Fill a cluster and write down what it says."""
    top = Path(tempfile.mkdtemp(prefix="record-", dir="/tmp"))
    top.chmod(0o755)
    spec = SandboxSpec(
        cred_expire_s=600,
        partitions=(
            PartitionSpec("gpu"),
            PartitionSpec("debug", nodes="n[1-2]", options=("MaxTime=60",)),
        ),
    )
    box = Sandbox.up(top / "c", spec)
    try:
        _fill(box)
        _write(box)
    finally:
        box.down(remove=True)
        shutil.rmtree(top)


def _fill(box: Sandbox) -> None:
    for node, (available, active) in FEATURES.items():
        features = (f"AvailableFeatures={available}", f"ActiveFeatures={active}")
        box.run(["scontrol", "update", f"NodeName={node}", *features])
    ids: dict[str, str] = {}
    for name, (options, expected) in CASES.items():
        wrap = [] if any(o.startswith("--wrap") for o in options) else ["--wrap=sleep 3600"]
        if ":" in options:
            # A heterogeneous job takes no --wrap.
            script = top_script(box)
            argv = ["--parsable", "-o/dev/null", *options, script]
        else:
            argv = ["--parsable", "-o/dev/null", f"-J{name}", *options, *wrap]
        ids[name] = box.run(["sbatch", *argv]).stdout.strip().partition(";")[0]
        if any(record["state"] in {RUNNING, "COMPLETED"} for record in expected.values()):
            _wait_for(box, ids[name], "RUNNING", "COMPLETED")
    box.run(["scancel", ids["cancelled"]])
    box.run(["scontrol", "requeue", "Incomplete", f"{ids['again']}_0"])
    _wait_for(box, f"{ids['again']}_1", "RUNNING")
    _wait_for(box, f"{ids['again']}_0", "PENDING")
    _wait_for(box, ids["broken"], "FAILED")
    reserve = ["scontrol", "create", "reservation", "StartTime=now", "Duration=60"]
    flags = "Flags=IGNORE_JOBS,FLEX,NO_HOLD_JOBS_AFTER"
    box.run([*reserve, "ReservationName=slurm_dl_5", "Nodes=n1,n2", "Users=root", flags])
    box.run([*reserve, "ReservationName=course", "Nodes=n3", "Users=nobody", flags])
    box.run(["scontrol", "update", f"JobId={ids['big']}", "ReservationName=slurm_dl_5"])
    reason = "bad\nNodeName=n9 State=IDLE Partitions=gpu"
    box.run(["scontrol", "update", "NodeName=n4", "State=DRAIN", f"Reason={reason}"])
    too_long = ids["too-long"]
    eventually(
        lambda: "PartitionTimeLimit" in box.run(["squeue", "-h", f"-j{too_long}", "-o%r"]).stdout,
        60.0,
        what="the scheduler to have looked at every job",
    )


def top_script(box: Sandbox) -> str:
    """A batch script that sleeps."""
    script = box.jobs_directory / "sleep.sh"
    script.write_text("#!/bin/sh\nsleep 3600\n", encoding="utf-8")
    return str(script)


def _wait_for(box: Sandbox, job_id: str, *states: str) -> None:
    def reached() -> bool:
        argv = ["squeue", "--array-unique", "-h", "-tall", f"-j{job_id}", "-o%T"]
        return any(state in states for state in box.run(argv).stdout.split())

    eventually(reached, 60.0, what=f"job {job_id} to be {' or '.join(states)}")


def _write(box: Sandbox) -> None:
    show = ("scontrol", "show")
    outputs = {
        "squeue": _raw(box, "squeue", *queue_arguments(JOB_FIELDS, NONCE)),
        "excluded": _raw(box, "squeue", *EXCLUDED_ARGUMENTS),
        "sinfo": _raw(box, "sinfo", *node_arguments(NONCE)),
        "topology": _raw(box, *show, "topology"),
        "reservation": _raw(box, *show, "reservation", "--oneliner"),
        "job": _raw(box, *show, "job", "--details", "--oneliner"),
        "sprio": _raw(box, "sprio", "--noheader", "--format=%i %S"),
        "config": b"".join(
            line
            for line in _raw(box, *show, "config").splitlines(keepends=True)
            if line.startswith((b"SLURM_VERSION", b"SelectType", b"PriorityType", b"KillWait"))
        ),
    }
    release = parse_release(outputs["config"].decode())
    folder = HERE / f"slurm-{release.major}.{release.minor:02}"
    folder.mkdir(exist_ok=True)
    for name, output in outputs.items():
        (folder / f"{name}.txt").write_bytes(output)
    expected = {
        "nonce": NONCE,
        "now_s": int(time.time()),
        "nodes": NODES,
        "jobs": [
            {"name": name, "label": label, "expected": record}
            for name, (_, records) in CASES.items()
            for label, record in records.items()
        ],
    }
    text = json.dumps(expected, indent=1, sort_keys=True)
    (folder / "expected.json").write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(f"{folder}\n")


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

"""Fills a private Slurm with the cases, one after the other, as their owners would."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from contract.cases import AFTERWARDS, CASES, CLUSTER, FEATURES, SETTLED_AT_LAST, Case

from slurm_dl.sandbox import Sandbox, SandboxSpec
from slurm_dl.sandbox.process_control import eventually
from slurm_dl.slurm.releases import Release, parse_release

WITHIN_S = 240.0


@contextmanager
def own_cluster(spec: SandboxSpec = CLUSTER) -> Iterator[Sandbox]:
    """A private Slurm for as long as it is wanted."""
    top = Path(tempfile.mkdtemp(prefix="sdl-", dir="/tmp"))
    top.chmod(0o755)
    directory = top / "c"
    try:
        box = Sandbox.up(directory, spec)
        try:
            yield box
        finally:
            # What waits for it ends at once, instead of after KillWait.
            (box.jobs_directory / "stop").touch()
    finally:
        # Also for a start that broke off half way.
        if (directory / "sandbox.json").exists():
            Sandbox.open(directory).down(remove=True)
        shutil.rmtree(top)


def release_of(box: Sandbox) -> Release:
    """Its Slurm's release."""
    return parse_release(box.run(["squeue", "--version"]).stdout)


def cases_of(release: Release) -> dict[str, Case]:
    """Those cases that *release* knows the options of."""
    return {
        name: case for name, case in CASES.items() if (release.major, release.minor) >= case.since
    }


def fill(box: Sandbox, cases: Mapping[str, Case]) -> dict[str, str]:
    """Submit *cases* and do with them what is to be done; the job ids by name."""
    for node, (available, active) in FEATURES.items():
        features = (f"AvailableFeatures={available}", f"ActiveFeatures={active}")
        box.run(["scontrol", "update", f"NodeName={node}", *features])
    ids: dict[str, str] = {}
    for name, case in cases.items():
        for command in case.first:
            box.run(command, timeout_s=WITHIN_S)
        ids[name] = _submit(box, name, case, ids)
        if case.settled:
            _wait_for(box, ids[name], case.settled)
        for command in case.then:
            box.run([word.format(id=ids[name]) for word in command], timeout_s=WITHIN_S)
        if any(record["state"] == "RUNNING" for record in case.records.values()):
            # Nothing may take its place, so that each case finds the nodes that it names.
            _wait_for(box, ids[name], "RUNNING")
    for command in AFTERWARDS:
        box.run(command)
    last, reason = SETTLED_AT_LAST
    if last in ids:
        shows = ["squeue", "-h", f"-j{ids[last]}", "-o%r"]
        eventually(
            lambda: reason in box.run(shows).stdout,
            WITHIN_S,
            what="the scheduler to have looked at every job",
        )
    return ids


def _submit(box: Sandbox, name: str, case: Case, ids: Mapping[str, str]) -> str:
    options = [with_ids(option, ids) for option in case.options]
    if case.tool == "salloc":
        said = box.run(["salloc", "--no-shell", f"-J{name}", *options]).stderr
        return re.findall(r"job allocation ([0-9]+)", said)[-1]
    argv = ["sbatch", "--parsable", "-o/dev/null"]
    if ":" in options:
        # A heterogeneous job reads no script from its input; each part brings its own name.
        script = box.jobs_directory / "script.sh"
        script.write_text(case.script or "", encoding="utf-8")
        said = box.run([*argv, *options, str(script)]).stdout
    else:
        said = box.run([*argv, f"-J{name}", *options], stdin=case.script or "").stdout
    return said.strip().partition(";")[0]


def with_ids(option: str, ids: Mapping[str, str]) -> str:
    """*option* with the ids of the cases that it names in braces; comments may have braces too."""
    return re.sub(r"\{([a-z-]+)\}", lambda m: ids.get(m[1], m[0]), option)


def _wait_for(box: Sandbox, job_id: str, *states: str) -> None:
    shows = ["squeue", "--array", "-h", "-tall", f"-j{job_id}", "-o%T %r %N"]
    nodes = ["sinfo", "-h", "-N", "-o%N %T %E"]

    def reached() -> bool:
        said = box.run(shows).stdout
        is_there = any(line.split()[0] in states for line in said.splitlines())
        assert is_there, f"squeue says {said!r}, sinfo {box.run(nodes).stdout!r}"
        return is_there

    eventually(reached, WITHIN_S, what=f"job {job_id} to be {' or '.join(states)}")

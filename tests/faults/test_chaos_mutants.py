"""The checker of the fault campaign on a real Slurm: it names the fault of each broken daemon.

All daemons live at once on one cluster, each with a partition, a node and reservations of its own,
and go through the same story: a job that waits for GPUs makes the daemon take some back. One victim
works on through everything, one ends well in its grace, and one is put back by its user meanwhile;
beside them runs a job that has agreed to nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from patience import PATIENCE, eventually
from schedd import ROOT, Schedd

from slurm_dl.daemon.control.client import Client, DaemonError
from slurm_dl.sandbox import PartitionSpec, Sandbox, SandboxNodes, SandboxSpec
from tools.chaos.checker import Report, check
from tools.chaos.mutants import MUTANTS

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.full("runs more than ten daemons on one cluster for minutes"),
    pytest.mark.timeout(900),
]

NAMES = ("sound", *MUTANTS)
KEEPS = ("leaves-reservations", "no-compare")
"""Daemons that keep the node longer than the story lasts: the victims go on elsewhere."""
SPARE = {name: len(NAMES) + 1 + i for i, name in enumerate((*KEEPS, "starts-twice"))}
"""Numbers of further nodes."""
GRACE_S = {"ignores-grace": 40}
QUANTUM_S = {"ignores-quantum": 40}
"""Long where it is ignored, so that no slow machine keeps it by chance; else 8 s."""
WAITS_FOR = {"takes-everybody": 6}
"""GPUs of the job that waits: all there are, where the unwilling one is to be taken; else 5."""
WORK_S = 60
"""Work of a job, long enough that a busy machine does not bring the daemon too late."""


def _partition(name: str) -> str:
    return name.replace("-", "_")


def _prefix(name: str) -> str:
    return f"slurm_dl_{_partition(name)}_"


def _spec() -> SandboxSpec:
    nodes = {n: f"n{i},n{SPARE[n]}" if n in SPARE else f"n{i}" for i, n in enumerate(NAMES, 1)}
    return SandboxSpec(
        groups=(SandboxNodes(nodes=len(NAMES) + len(SPARE), gpus=6),),
        nodes_per_leaf=0,
        cred_expire_s=5,  # less is taken for the default, 120 (22.05.8)
        kill_wait_s=3,
        partitions=tuple(PartitionSpec(_partition(n), on) for n, on in nodes.items()),
        accounting=True,
    )


@dataclass(kw_only=True)
class Story:
    """One daemon, its jobs, and how far it has come."""

    name: str
    box: Sandbox
    schedd: Schedd
    jobs: dict[str, str] = field(default_factory=dict)
    is_requeued: bool = False
    is_spare_up: bool = False

    @property
    def home(self) -> Path:
        """What the checker calls the site."""
        return self.schedd.home

    def begin(self) -> None:
        """Start the daemon; nothing is waited for."""
        for sub in ("out", "work"):
            (self.home / sub).mkdir()
        self.schedd.configure(
            manage={"partitions": [_partition(self.name)]},
            policy={"parameters": {"thresholds_gpu_s": [2, 5000]}},
            preemption={"min_quantum_s": QUANTUM_S.get(self.name, 8), "cooldown_s": 1},
        )
        with (self.home / "schedd.log").open("ab") as log:
            self.schedd.process = subprocess.Popen(
                [
                    *(
                        sys.executable,
                        "-P",
                        str(ROOT / "tools" / "chaos" / "mutants.py"),
                        self.name,
                    ),
                    *(_prefix(self.name), "--config", str(self.schedd.config)),
                    *("--live", "--allow-root"),
                ],
                env={**self.schedd.env, "MUTANT_SPARE": f"n{SPARE.get(self.name, 0)}"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def end(self) -> None:
        """End the daemon at once."""
        process = self.schedd.process
        if process is not None and process.poll() is None:
            process.kill()
            process.wait(20 * PATIENCE)

    def cycles(self) -> int:
        """How often the daemon has looked; 0 while it does not answer."""
        try:
            return int(Client(self.home / "run" / "dlschedd.sock", 10.0).ask("status")["cycles"])
        except DaemonError:
            return 0

    def submit(self, who: str, gpus: int, work_s: float, mode: str, *, willing: bool) -> None:
        """Submit one job of the story and note it, as the campaign does."""
        grace_s = GRACE_S.get(self.name, 8)
        terms = {"signal": "USR1", "target": "batch", "grace_s": grace_s, "by": "daemon"}
        claim = {"v": 1, "sig": "USR1", "to": "batch", "grace_s": grace_s, "by": "daemon"}
        comment = json.dumps({"slurm_dl": claim if willing else {"v": 1}})
        job = [sys.executable, str(ROOT / "tools" / "chaos" / "job.py"), "--site", str(self.home)]
        argv = [
            *("sbatch", "--parsable", "--requeue", "--nodes=1", "--output=/dev/null"),
            *(f"--partition={_partition(self.name)}", f"--gres=gpu:{gpus}", f"--job-name={who}"),
            f"--comment={comment}",
            f"--wrap=exec {' '.join([*job, '--mode', mode, '--work', str(work_s)])}",
        ]
        self.jobs[who] = self.box.run(argv).stdout.strip()
        self._append(
            "submitted.jsonl",
            job=int(self.jobs[who]),
            tasks=None,
            het=None,
            kind=who,
            gpus=gpus,
            contract=terms if willing else None,
            requeueable=True,
            expects="completed",
        )

    def go_on(self, states: Mapping[str, str]) -> None:
        """Do what is due: the user's requeue once its victim has been told."""
        if not self.is_requeued and self.schedd.audit(
            action="signal", job=int(self.jobs["taken"]), result="ok"
        ):
            self.is_requeued = True
            self.box.run(["scontrol", "requeue", "Incomplete", self.jobs["taken"]])
            self._append("events.jsonl", event="user_requeue", job=int(self.jobs["taken"]))
        if self.name in KEEPS and not self.is_spare_up:
            self.is_spare_up = states.get(self.jobs["waits"]) == "RUNNING"
            if self.is_spare_up:
                self.box.run(
                    ["scontrol", "update", f"NodeName=n{SPARE[self.name]}", "State=RESUME"]
                )

    def _append(self, name: str, **line: object) -> None:
        with (self.home / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "t": time.time()}) + "\n")


def _states(box: Sandbox) -> dict[str, str]:
    """State of each job in the queue; held ones are called so."""
    lines = box.run(["squeue", "-ah", "-o", "%A|%T|%r"]).stdout.splitlines()
    records = [line.split("|") for line in lines]
    return {job: "HELD" if "held" in why else state for job, state, why in records}


@pytest.fixture(scope="module")
def reports(module_directory: Path) -> Iterator[dict[str, Report]]:
    """What the checker says of each daemon."""
    with ExitStack() as stack:
        box = Sandbox.up(module_directory / "c", _spec())
        stack.callback(box.down, remove=True)
        stories = []
        for number in SPARE.values():
            box.run(["scontrol", "update", f"NodeName=n{number}", "State=DRAIN", "Reason=spare"])
        for name in NAMES:
            home = module_directory / name
            home.mkdir()
            home.chmod(0o755)
            story = Story(name=name, box=box, schedd=Schedd(box=box, home=home))
            stories.append(story)
            stack.callback(story.end)
            story.begin()
        eventually(lambda: all(s.cycles() > 0 for s in stories), 180, 1, what="the daemons")
        for story in stories:
            story.submit("deaf", 2, WORK_S, "deaf", willing=True)
            story.submit("taken", 2, WORK_S, "silent", willing=True)
            story.submit("finishes", 1, WORK_S, "finish", willing=True)
            story.submit("unwilling", 1, WORK_S, "silent", willing=False)
        eventually(lambda: set(_states(box).values()) == {"RUNNING"}, 60, what="the jobs to run")
        for story in stories:
            story.submit("waits", WAITS_FOR.get(story.name, 5), 2, "silent", willing=True)

        def are_over() -> bool:
            states = _states(box)
            for story in stories:
                story.go_on(states)
            return set(states.values()) <= {"HELD"}

        eventually(are_over, 300, 0.5, what="the jobs to end")
        seen = {s.name: s.cycles() for s in stories}
        eventually(
            lambda: all(s.cycles() > seen[s.name] + 1 for s in stories), 60, 1, what="one more look"
        )
        yield {s.name: check(s.home, box, reservations_of=_prefix(s.name)) for s in stories}


def test_the_sound_daemon_passes(reports: dict[str, Report]) -> None:
    """Nothing is wrong, and every invariant had something to look at."""
    report = reports["sound"]

    assert report.ok, "\n".join(report.lines())
    assert all(finding.checked for finding in report.findings), "\n".join(report.lines())


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_daemon_is_caught(reports: dict[str, Report], name: str) -> None:
    """The invariants that its fault breaks are named, and no others."""
    report = reports[name]

    assert report.violated == MUTANTS[name][1], "\n".join(report.lines())
    assert not report.ok

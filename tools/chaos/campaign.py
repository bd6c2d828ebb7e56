"""One campaign: the crowd on one side, the faults on the other, then quiet, then the checker."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from slurm_dl.model.errors import ClusterError
from slurm_dl.sandbox.process_control import DeadlinePassedError, eventually
from tools.chaos import tally
from tools.chaos.attacker import Attacker, polls_failed
from tools.chaos.crowd import Crowd
from tools.chaos.faults import KINDS
from tools.chaos.site import Site
from tools.chaos.tally import Tally, Verdict
from tools.chaos.workload import crowd

# Of the time in all: what the last jobs, the accounting and the checker get.
_END_PART: Final = 0.65
_END_S: Final = 420.0
_NESTED_PROB: Final = 0.25
_HEAD_START: Final = 0.15
_FIRST_JOBS: Final = 30
_LARGE_CAMPAIGN: Final = 200
_WAITING: Final = "PENDING,RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED"
# No CPU of it is taken, and yet GPUs are.
_LEAKING: Final = re.compile(
    r"^NodeName=(\S+) .* CPUAlloc=0 .* AllocTRES=\S*gres/gpu=[1-9]", re.MULTILINE
)
_UNDONE: Final = frozenset({"PENDING", "RUNNING", "COMPLETING", "SUSPENDED"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is asked for.

    Attributes:
        jobs: Jobs that Slurm shall have made in the end, at least.
        faults: Faults to inject.
        seed: All that is drawn is drawn from it.
        minutes: The whole may take so long; what is not done by then is left out, and said.
        only: Names of the faults to choose among.
    """

    jobs: int
    faults: int
    seed: int
    minutes: float
    only: tuple[str, ...] = tuple(KINDS)

    @property
    def nodes(self) -> int:
        """Nodes of the cluster: so many that the jobs get through it."""
        return 3 if self.jobs < _LARGE_CAMPAIGN else 6


class Campaign:
    """Plays it on a site that is up.

    Args:
        say: Told how it goes, a line at a time.
    """

    def __init__(self, site: Site, settings: Settings, say: Callable[[str], None]) -> None:
        self._site = site
        self._settings = settings
        self._say = say
        self._problems: list[str] = []
        self._injected = 0
        self._leaking: frozenset[str] = frozenset()
        self._began_s = time.monotonic()
        total_s = settings.minutes * 60
        self._deadline_s = self._began_s + total_s
        self._last_fault_s = self._deadline_s - min(_END_S, total_s * _END_PART)
        self._attacker = Attacker(site)
        self._crowd = Crowd(
            site,
            crowd(settings.seed, settings.jobs),
            allowed=self._allowed,
            nodes=settings.nodes,
        )

    def play(self) -> Tally:
        """All of it, up to the moment when nothing is left to happen."""
        self._crowd.start()
        self._attacker.start()
        try:
            self._inject()
            self._site.schedd.wait_acting(120.0)
            self._attacker.stop()
            self._until_all_ended()
        except ClusterError as err:
            self._problems.append(str(err))
        finally:
            self._attacker.stop()
            self._crowd.stop()
        self._settle()
        return self._count()

    def _allowed(self) -> float:
        """Jobs that may be there by now: they come while the faults do."""
        done = self._injected / max(1, self._settings.faults)
        return self._settings.jobs * done + max(_FIRST_JOBS, self._settings.jobs * _HEAD_START)

    # Faults.

    def _inject(self) -> None:
        rng = random.Random(f"faults {self._settings.seed}")  # noqa: S311 - to be repeated
        for number, name in enumerate(_names(rng, self._settings)):
            left_s = self._last_fault_s - time.monotonic()
            if left_s <= 0:
                self._problems.append(
                    f"only {number} of {self._settings.faults} faults fitted into the time"
                )
                return
            share_s = left_s / (self._settings.faults - number)
            self._one(rng, name, share_s)
            self._injected = number + 1

    def _one(self, rng: random.Random, name: str, share_s: float) -> None:
        """One fault, and a while of peace after it; *share_s* for both, about."""
        began_s = time.monotonic()
        kind = KINDS[name]
        lasts_s = min(rng.uniform(0.15, 1.0) * kind.longest_s, 0.6 * share_s)
        ours = [other for other in self._settings.only if KINDS[other].ours]
        with ExitStack() as broken:
            self._break(broken, name, rng)
            if not kind.ours and ours and rng.random() < _NESTED_PROB:
                _pass(lasts_s / 2)
                with ExitStack() as inner:
                    self._break(inner, rng.choice(ours), rng)
                    _pass(lasts_s / 2)
            else:
                _pass(lasts_s)
        self._site.schedd.revive()
        took_s = time.monotonic() - began_s
        self._say(f"{self._progress()}  {name}, {took_s:.0f} s")
        _pass(max(0.5, (share_s - took_s) * rng.uniform(0.5, 1.0)))

    def _break(self, stack: ExitStack, name: str, rng: random.Random) -> None:
        try:
            stack.enter_context(KINDS[name].fault(self._site, rng))
        except DeadlinePassedError as err:
            self._problems.append(f"{name}: {err}")

    def _progress(self) -> str:
        passed_s = time.monotonic() - self._began_s
        return (
            f"{passed_s / 60:5.1f} min  {self._crowd.submitted:4} jobs"
            f"  {self._injected + 1:3} faults"
        )

    # The end.

    def _until_all_ended(self) -> None:
        self._say("no more faults: waiting for the rest of the jobs")

        def nothing_left() -> bool:
            self._site.schedd.revive()
            self._restart_if_leaking()
            return self._crowd.is_idle and not self._left()

        left_s = max(10.0, self._deadline_s - time.monotonic())
        try:
            eventually(nothing_left, left_s, 1.0, what="all jobs to end")
        except DeadlinePassedError:
            self._cut_short()

    def _restart_if_leaking(self) -> None:
        """Let Slurm count its GPUs anew where it counts some of an idle node as taken.

        It does (22.05.8) after a controller has come back to jobs that had left a node meanwhile,
        and a large job would wait for them for ever.
        """
        text = self._site.box.run(["scontrol", "-o", "show", "nodes"]).stdout
        leaking = frozenset(_LEAKING.findall(text))
        if leaking & self._leaking:
            self._say(f"GPUs of {', '.join(sorted(leaking))} are lost to Slurm: restarting it")
            with KINDS["slurmctld_restart"].fault(self._site, random.Random(0)):  # noqa: S311
                leaking = frozenset()
        self._leaking = leaking

    def _cut_short(self) -> None:
        self._crowd.stop()
        jobs = self._left()
        if not self._crowd.is_over:
            self._problems.append(
                f"only {self._crowd.submitted} of {self._settings.jobs} jobs fitted into the time"
            )
        if jobs:
            shown = ", ".join(str(job) for job in jobs[:10])
            self._problems.append(
                f"{len(jobs)} jobs had not ended in time and were cancelled: {shown}"
            )
        for job in jobs:
            ok = self._site.box.run(["scancel", str(job)], check=False).returncode == 0
            self._site.event("cancel", job=job, ok=ok, by="deadline")
        eventually(lambda: not self._left(), 60.0, 1.0, what="cancelled jobs to end")

    def _left(self) -> list[int]:
        argv = ["squeue", "-ahr", "-t", _WAITING, "-o", "%A"]
        return sorted({int(word) for word in self._site.box.run(argv).stdout.split()})

    def _settle(self) -> None:
        """Let accounting and the ledger learn of the last ends, then end the daemon."""
        try:
            self._site.schedd.wait_acting(60.0)
            eventually(lambda: not _UNDONE & set(self._ends()), 90.0, 1.0, what="accounting")
            answer = self._site.schedd.status() or {}
            cycles = int(str(answer.get("cycles", 0)))
            eventually(
                lambda: int(str((self._site.schedd.status() or {}).get("cycles", 0))) >= cycles + 4,
                60.0,
                what="four more looks",
            )
        except ClusterError as err:
            self._problems.append(str(err))
        self._site.schedd.stop()

    def _ends(self) -> dict[str, int]:
        """Slurm's last word on each job, counted."""
        argv = ["sacct", "-aXnP", "-S", "now-1days", "-o", "State"]
        words = [line.split() for line in self._site.box.run(argv).stdout.splitlines()]
        return dict(Counter(state[0] for state in words if state))

    def _count(self) -> Tally:
        schedd = self._site.schedd
        self._problems += [f"dlschedd ended by itself: {death}" for death in schedd.deaths]
        if bugs := schedd.bugs():
            self._problems.append(f"{bugs} tracebacks in {schedd.log}")
        log = schedd.log.read_text(encoding="utf-8", errors="replace")
        self._problems += [f"failed by a record: {line[:200]}" for line in polls_failed(log)]
        self._problems += [f"not submitted: {why}" for why in self._crowd.failed]
        submitted = tally.read_lines(self._site.directory / "submitted.jsonl")
        faults, nested = tally.faults_by_name(
            tally.read_lines(self._site.directory / "events.jsonl")
        )
        runs = tally.runs_in(self._site.directory / "out")
        return Tally(
            seed=self._settings.seed,
            took_s=time.monotonic() - self._began_s,
            jobs=tally.jobs_by_kind(submitted),
            ends=self._ends(),
            faults=faults,
            nested=nested,
            runs=runs.runs,
            asked=runs.asked,
            asked_in_arrays=runs.asked_in_arrays,
            asked_again=runs.asked_again,
            preemptions=runs.preemptions,
            resized=runs.resized,
            requeues=runs.requeues,
            cancels=self._crowd.cancels,
            attacks=self._attacker.arrays,
            starts=schedd.starts,
            problems=tuple(self._problems),
        )


def judge(site: Site) -> Verdict:
    """What the checker says of the campaign on *site*."""
    from tools.chaos.checker import check  # noqa: PLC0415 - it reads records, and needs all of them

    verdict: Verdict = check(site.directory, site.box)
    return verdict


def _names(rng: random.Random, settings: Settings) -> Iterator[str]:
    """Which faults come: each once, then at random."""
    first: Sequence[str] = rng.sample(settings.only, len(settings.only))
    for number in range(settings.faults):
        yield first[number] if number < len(first) else rng.choice(settings.only)


def _pass(seconds: float) -> None:
    """Let time pass: that is what a fault lasts."""
    time.sleep(max(0.0, seconds))

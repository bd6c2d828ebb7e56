"""On a real Slurm a policy does what is its own beyond an order, and FIFO, LAS, a static order not.

One cluster of four v100 (n1) and four k80 (n2), which accounts and models divide. Each case is run
under its policy and under each mutant, and says what each of them does.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from schedd import Schedd, schedd_in

from slurm_dl.sandbox import Sandbox, SandboxNodes, SandboxSpec

pytestmark = pytest.mark.slurm

KINDS: Final = {"n1": "v100", "n2": "k80"}
SPEED_ON_V100: Final = {"fast": 4.0, "some": 2.0, "even": 1.0}
"""By model, where it is 1 on k80."""
SETTLE_S: Final = 4

STATIC: Final = "static"
"""A policy of the tests: the last submitted first."""
ORDERS: Final = {STATIC: f"{Path(__file__).parents[1] / 'last_first.py'}:LastFirst"}


def cases(policy: str, *mutants: str) -> list[Any]:
    """The policy and its mutants, of which `make test` has FIFO."""
    slow = pytest.mark.full("seconds each; FIFO shows that the case can fail")
    return [policy, *(pytest.param(name, marks=() if name == "fifo" else slow) for name in mutants)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job of a case.

    Attributes:
        gpus: On each of its nodes.
        minutes: Its limit, which is what it is believed to take on k80.
        on: The node it is bound to; empty: any.
    """

    gpus: int
    minutes: int
    account: str = "a"
    model: str = "even"
    on: str = ""
    nodes: int = 1
    runs: str = "exec sleep 3600"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster on which one policy after the other is in force."""

    place: Schedd

    def put_in_force(self, policy: str, **parameters: object) -> None:
        """Go on with this policy."""
        self.place.configure(
            daemon={"poll_s": 0.5, "fast_poll_s": 0.25},
            policy={"order": ORDERS.get(policy, policy), "parameters": parameters},
            placement={"scheme": "best_fit", "steer": True, "settle_s": SETTLE_S},
            preemption={"enabled": False},
            ranking={"pass_s": 0, "overdue_share": 0},
            paths={"profile_dir": str(self.place.home / "profiles")},
        )
        if self.place.process is None:
            self.place.start()
        else:
            self.place.ask("dlctl", "reload")

    def submit(self, *jobs: Job) -> list[str]:
        """Submit these jobs at once; they may start once the daemon has had time to place them."""
        # One second for all: none is to start because it came first.
        begin_s = int(time.time()) + SETTLE_S
        begin = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(begin_s))
        lines = []
        for job in jobs:
            about = json.dumps({"slurm_dl": {"v": 1, "model": job.model}})
            node = f"--nodelist={job.on}" if job.on else f"--begin={begin}"
            lines.append(
                f"sbatch --parsable -o /dev/null {node} --gres=gpu:{job.gpus} --mem=100"
                f" --time={job.minutes} --account={job.account} --comment='{about}'"
                f" --nodes={job.nodes} --wrap '{job.runs}'"
            )
        return self.place.box.run(["bash", "-ec", "\n".join(lines)]).stdout.split()

    def node(self, job: str) -> str:
        """The node on which the job is; empty if it waits."""
        state, nodes = self.place.job(job, "JobState", "NodeList")
        return nodes if state == "RUNNING" else ""


@pytest.fixture(scope="module")
def place(module_directory: Path) -> Iterator[Schedd]:
    """The cluster, and its models."""
    groups = tuple(SandboxNodes(nodes=1, gpus=4, gpu_type=kind) for kind in KINDS.values())
    box = Sandbox.up(module_directory / "box", SandboxSpec(groups=groups, nodes_per_leaf=0))
    try:
        models = module_directory / "profiles"
        models.mkdir(mode=0o755)
        for model, speed in SPEED_ON_V100.items():
            speeds = [
                {"shape": "1x1", "gpu_type": kind, "steps_per_s": rate}
                for kind, rate in (("v100", speed), ("k80", 1.0))
            ]
            told = {"name": model, "source": "a made-up model", "speeds": speeds}
            (models / f"{model}.yaml").write_text(yaml.safe_dump(told), encoding="utf-8")
        with schedd_in(box, module_directory) as place:
            yield place
    finally:
        box.down(remove=True)


@pytest.fixture
def cluster(place: Schedd) -> Iterator[Cluster]:
    """The cluster without jobs."""
    yield Cluster(place)
    box = place.box
    box.run(["scancel", "--quiet", *box.run(["squeue", "-ho", "%A"]).stdout.split()], check=False)
    place.until("an empty queue", lambda: not box.run(["squeue", "-ho", "%A"]).stdout)


@pytest.mark.parametrize("policy", cases("allox", "fifo", "las", STATIC))
def test_a_job_waits_for_gpus_that_end_it_sooner(cluster: Cluster, policy: str) -> None:
    """AlloX: in 10 min the v100 are free: 10 + 60 / 4 = 25 min are less than the 60 on a k80."""
    place = cluster.place
    (blocker,) = cluster.submit(Job(gpus=4, minutes=10, on="n1"))
    place.until("the blocker", lambda: cluster.node(blocker))
    cluster.put_in_force(policy)
    (job,) = cluster.submit(Job(gpus=4, minutes=60, model="fast"))
    submitted_s = time.monotonic()
    if policy == "allox":
        # Twice as long as any mutant takes to start it.
        place.until("looks", lambda: time.monotonic() > submitted_s + 2 * SETTLE_S)
        assert not cluster.node(job)
        place.box.run(["scancel", blocker])
    place.until("a start", lambda: cluster.node(job))
    assert cluster.node(job) == ("n1" if policy == "allox" else "n2")


ARRIVED: Final = {("b", "v100"): 4, ("b", "k80"): 1, ("a", "k80"): 3}
TRADE: Final = {
    "gandiva_fair": {("a", "v100"): 3, ("b", "v100"): 1, ("b", "k80"): 4},
    "fifo": ARRIVED,
    "las": ARRIVED,
    STATIC: {("a", "v100"): 3, ("a", "k80"): 3, ("b", "v100"): 1, ("b", "k80"): 1},
}
"""GPUs that each account's jobs hold of each type."""
HALVES: Final = {"a": 2 * 4.0 + 2, "b": 2 * 2.0 + 2}
"""Speed of each account, in k80, with half of each type and no trade."""


@pytest.mark.parametrize("policy", cases(*TRADE))
def test_tenants_trade_fast_gpus_for_slow_ones(cluster: Cluster, policy: str) -> None:
    """Gandiva_fair: a v100 is worth 4 k80 to account a and 2 to b, whose price it is.

    By tickets each has 2 v100 and 2 k80. Account a buys 1 v100 for its 2 k80, and has 3 and 0; b
    has 1 and 4. So a is faster by 12 / 10, and b as fast as before; a mutant slows one of them.
    """
    cluster.put_in_force(policy, **({"lease_s": 86_400.0} if policy == "gandiva_fair" else {}))
    jobs = [Job(gpus=1, minutes=600, account="b", model="some")] * 5
    jobs += [Job(gpus=3, minutes=600, account="a", model="fast")] * 2
    ids = cluster.submit(*jobs)
    got: Counter[tuple[str, str]] = Counter()

    def look() -> bool:
        got.clear()
        for job, name in zip(jobs, ids, strict=True):
            if node := cluster.node(name):
                got[job.account, KINDS[node]] += job.gpus
        return got.total() == 8

    cluster.place.until("all GPUs to be in use", look)
    assert got == TRADE[policy]
    speed = {
        one: got[one, "v100"] * SPEED_ON_V100[model] + got[one, "k80"]
        for one, model in (("a", "fast"), ("b", "some"))
    }
    fair = all(speed[one] >= HALVES[one] for one in HALVES)
    assert fair == (policy == "gandiva_fair")


CAPPED: Final = {"hug": (4, 2), "fifo": (6, 2), "las": (6, 2), STATIC: (6, 2)}
"""Jobs of accounts a and b that run."""


@pytest.mark.parametrize("policy", cases(*CAPPED))
def test_an_account_at_its_cap_starts_no_other_job(cluster: Cluster, policy: str) -> None:
    """HUG without cooperation: both want GPUs most, so each may have half of the 8, and 2 idle."""
    cluster.put_in_force(policy, **({"cooperative": False} if policy == "hug" else {}))
    ids = cluster.submit(
        *[Job(gpus=1, minutes=600)] * 6, *[Job(gpus=1, minutes=600, account="b")] * 2
    )
    at_s = time.monotonic() + 2 * SETTLE_S

    def run() -> tuple[int, int]:
        on = [bool(cluster.node(job)) for job in ids]
        return sum(on[:6]), sum(on[6:])

    cluster.place.until("its jobs", lambda: run() == CAPPED[policy])
    if policy == "hug":
        cluster.place.until("looks", lambda: time.monotonic() > at_s)
        assert run() == CAPPED[policy]
        ended = next(job for job in ids if cluster.node(job))
        cluster.place.box.run(["scancel", ended])
        cluster.place.until("the fifth", lambda: not cluster.node(ended) and run() == (4, 2))


MINUTES: Final = {"a1": 3, "b2": 1, "a3": 2}
"""Limits of jobs that need all GPUs, in the order of their submission; first the account."""
FAIR_MINUTES: Final = {"a1": 6, "b2": 2, "a3": 5}
"""When DRF has done each, if all of it can be divided and each takes its limit.

Each account has half of the cluster, each job of account a so 1 / 4. After 2 min b2 is done, and
each of a's has had 1 / 2 min. With 1 / 2 of the cluster each, a3 needs 3 min more for the 1.5 that
it lacks, to 5. Job a1 has then had 2 min, and needs all of the cluster for one more, to 6.
"""
YIELDS: Final = {
    "carbyne": ["b2", "a3", "a1"],
    "fifo": ["a1", "b2", "a3"],
    "las": ["a1", "b2", "a3"],
    STATIC: ["a3", "b2", "a1"],
}


@pytest.mark.parametrize("policy", cases(*YIELDS))
def test_a_job_with_slack_yields_and_is_done_no_later_than_under_drf(
    cluster: Cluster, policy: str
) -> None:
    """Carbyne: a1, there first, can wait for 6 - 3 min. So it does, and b2 is not late either."""
    cluster.put_in_force(policy)
    starts, jobs = cluster.place.home / f"starts_{policy}", []
    for name, lasts in MINUTES.items():
        runs = f"echo {name} >>{starts}; sleep 1"
        jobs.append(Job(gpus=4, nodes=2, minutes=lasts, account=name[0], runs=runs))
    cluster.submit(*jobs)
    cluster.place.until(
        "all to start", lambda: starts.exists() and len(starts.read_text("ascii").split()) == 3
    )
    order = starts.read_text("ascii").split()
    assert order == YIELDS[policy]
    ends = dict(zip(order, accumulate(MINUTES[name] for name in order), strict=True))
    late = [name for name in order if ends[name] > FAIR_MINUTES[name]]
    assert bool(late) == (policy != "carbyne")

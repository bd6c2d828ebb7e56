"""How long every policy takes to decide: its order alone, and the engine's intent made from it.

The cluster has 10,000 GPUs of three types and a past of 10,000 finished jobs. Each policy is
measured in a process of its own on one core: its first call on a cluster it has not seen, and then
calls at later instants, when times have moved on. No Slurm is needed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.pool import Pool
from pathlib import Path

import measure
import numpy as np

from slurm_dl.engine.intent import intend
from slurm_dl.ledger.attained_service import AttainedService, remembered
from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import F64, I64, Jobs, JobState, Origin
from slurm_dl.model.nodes import Allocations, Nodes
from slurm_dl.model.snapshot import JobText, Observed, Snapshot
from slurm_dl.policies import registry

AIM_S = 2.0
AIM_JOBS = 3_000
NOW_S = 1_700_000_000.0
JOBS = (100, 1_000, 3_000, 10_000)
PAST = 10_000

_NODES, _GPUS = 1_250, 8
_TYPES = ("h100", "a100", "v100")
_OF_TYPE = (0.3, 0.4, 0.3)
_SPEEDS = (2.5, 1.0, 0.4)
_SIZES = (1, 2, 4, 8, 16, 32, 64)
_SHARES = (0.50, 0.12, 0.15, 0.13, 0.05, 0.03, 0.02)
_ACCOUNTS, _USERS, _NAMES = 20, 200, 800
_MOST_RUNNING = 0.6
"""Of the jobs, where there is room for all of them."""

_STEP_S = 60.0
_SLOW_S = 4.0
"""A policy whose first order takes longer is not asked several times."""

_FAR_S = 30 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """What one policy took for one number of jobs, seconds.

    Attributes:
        order_first: Its order of a cluster that it has not seen.
        order: The same at later instants.
        intent_first: The engine's `intend` for another cluster that it has not seen.
        intent: The same at later instants.
        why: What went wrong; nothing was measured then.
    """

    policy: str
    jobs: int
    order_first: float = float("nan")
    order: float = float("nan")
    intent_first: float = float("nan")
    intent: float = float("nan")
    why: str = ""

    @property
    def slowest(self) -> float:
        """The largest of the four; NaN if there is none."""
        return max(self.order_first, self.order, self.intent_first, self.intent)


def snapshot(n_jobs: int, *, seed: int = 1, past: int = PAST) -> Snapshot:
    """A busy cluster with a queue; everything is known of every job that can be known."""
    rng = np.random.default_rng(seed)
    nodes = _nodes()
    gpus = rng.choice(_SIZES, n_jobs, p=_SHARES).astype(np.float64)
    held = _running(gpus, nodes)
    runs = len(np.unique(held.job))
    waits = np.arange(n_jobs) >= runs
    submit_s = NOW_S - 200_000 + np.sort(rng.uniform(0, 190_000, n_jobs))
    ran_s = np.where(waits, rng.exponential(3_000, n_jobs) * (rng.random(n_jobs) < 0.2), 0.0)
    started_s = np.where(waits, 0.0, submit_s + rng.uniform(0, 9_000, n_jobs))
    account = rng.zipf(1.6, n_jobs) % _ACCOUNTS
    user = account * (_USERS // _ACCOUNTS) + rng.integers(0, _USERS // _ACCOUNTS, n_jobs)
    jobs = _jobs(gpus, waits, submit_s, started_s, user)
    seen = Observed(
        now_s=NOW_S,
        jobs=jobs,
        nodes=nodes,
        held=held,
        partitions=("gpu",),
        gpu_types=_TYPES,
        node_in=np.ones((1, _NODES), np.bool_),
        texts=_texts(jobs, account, user, rng),
    )
    on = np.zeros(n_jobs, np.int16)
    on[held.job] = nodes.gpu_type[held.node]
    rates = _rates(n_jobs, rng)
    base = remembered(AttainedService.empty(), jobs)
    stretch_s = np.where(waits, 0.0, NOW_S - started_s)
    memory = dataclasses.replace(
        base,
        ran_s=ran_s + stretch_s,
        attained_gpu_s=(ran_s + stretch_s) * gpus,
        first_submit_s=submit_s,
        first_run_s=np.where(waits & (ran_s == 0), 0.0, submit_s + 1.0),
        waiting_since_s=np.where(waits, submit_s + ran_s, NOW_S),
        preemptions=(ran_s > 0).astype(np.int32),
    )
    return Snapshot(
        seen=seen,
        memory=memory,
        left_s=rng.lognormal(8.5, 1.8, n_jobs),
        left_from=np.full(n_jobs, Origin.HISTORY, np.int8),
        progress=np.where(ran_s + stretch_s > 0, rng.uniform(0.01, 0.99, n_jobs), np.nan),
        due_s=np.where(rng.random(n_jobs) < 0.1, NOW_S + rng.uniform(600, 2e5, n_jobs), np.inf),
        rates=rates,
        rates_from=np.full(n_jobs, Origin.MEASURED, np.int8),
        credit_s=np.where(rates > 0, rng.normal(0, 600, rates.shape), 0.0),
        past=_past(past, rng),
        managed=np.ones(1, np.bool_),
    )


def later(snap: Snapshot, by_s: float) -> Snapshot:
    """The same cluster *by_s* seconds later: running jobs have run on, waiting ones waited."""
    jobs, memory = snap.jobs, snap.memory
    more_s = np.where(jobs.state == JobState.RUNNING, by_s, 0.0)
    return dataclasses.replace(
        snap,
        seen=dataclasses.replace(snap.seen, now_s=snap.now_s + by_s),
        memory=dataclasses.replace(
            memory,
            ran_s=memory.ran_s + more_s,
            attained_gpu_s=memory.attained_gpu_s + more_s * jobs.gpus,
        ),
        left_s=np.maximum(snap.left_s - more_s, 1.0),
    )


def _nodes() -> Nodes:
    counts = np.round(np.cumsum((0.0, *_OF_TYPE)) * _NODES).astype(np.int64)
    return Nodes(
        name=tuple(f"n{i + 1}" for i in range(_NODES)),
        up=np.ones(_NODES, np.bool_),
        gpus=np.full(_NODES, float(_GPUS)),
        gpu_type=np.repeat(np.arange(len(_TYPES)), np.diff(counts)).astype(np.int16),
        cpus=np.full(_NODES, 128, np.int32),
        mem_mb=np.full(_NODES, 1_024_000, np.int64),
        leaf=(np.arange(_NODES) // 25).astype(np.int16),
    )


def _running(gpus: F64, nodes: Nodes) -> Allocations:
    """The first jobs laid over the nodes one after the other, each on GPUs of one type."""
    ends = np.cumsum(np.bincount(nodes.gpu_type, weights=nodes.gpus))
    at, kind = 0.0, 0
    job: list[int] = []
    node: list[int] = []
    share: list[float] = []
    for row in range(round(len(gpus) * _MOST_RUNNING)):
        if at + gpus[row] > ends[kind]:
            kind += 1
            if kind == len(ends):
                break
            at = ends[kind - 1]
        left = float(gpus[row])
        while left > 0:
            here = min(left, _GPUS - at % _GPUS)
            job.append(row)
            node.append(int(at // _GPUS))
            share.append(here)
            at, left = at + here, left - here
    return Allocations(
        job=np.array(job, np.int32),
        node=np.array(node, np.int32),
        gpus=np.array(share),
        cpus=np.array(share).astype(np.int32),
        mem_mb=np.zeros(len(job), np.int64),
    )


def _jobs(gpus: F64, waits: np.ndarray, submit_s: F64, started_s: F64, user: I64) -> Jobs:
    n = len(gpus)
    return Jobs(
        job_id=np.arange(1, n + 1, dtype=np.int64),
        state=np.where(waits, JobState.PENDING, JobState.RUNNING).astype(np.int8),
        held=np.zeros(n, np.int8),
        partition=np.zeros(n, np.int16),
        uid=1000 + user.astype(np.int64),
        tasks=np.ones(n, np.int32),
        n_nodes=np.maximum(gpus // _GPUS, 1).astype(np.int32),
        gpus=gpus,
        gpu_type=np.full(n, -1, np.int16),
        cpus=(gpus * 8).astype(np.int32),
        mem_mb=(gpus * 64_000).astype(np.int64),
        submit_s=submit_s,
        start_s=started_s,
        end_s=np.zeros(n),
        limit_s=np.full(n, 7 * 86_400.0),
        restarts=np.zeros(n, np.int32),
        priority=np.full(n, 10**8, np.int64),
        requeueable=np.ones(n, np.bool_),
        exclusive=np.zeros(n, np.bool_),
    )


def _texts(jobs: Jobs, account: I64, user: I64, rng: np.random.Generator) -> dict[JobId, JobText]:
    names = rng.zipf(1.4, len(jobs)) % _NAMES
    columns = (jobs.job_id.tolist(), account.tolist(), user.tolist(), names.tolist())
    return {
        JobId(j): JobText(
            label=str(j), name=f"train-{k}", user=f"u{u}", account=f"lab{a}", qos="normal"
        )
        for j, a, u, k in zip(*columns, strict=True)
    }


def _rates(n: int, rng: np.random.Generator) -> F64:
    """Speeds on each type: all gain from the faster ones, some much and some little."""
    gains: F64 = np.array(_SPEEDS) ** rng.uniform(0.2, 1.2, (n, 1))
    gains[rng.random(gains.shape) < 0.03] = 0.0
    gains[gains.max(axis=1) <= 0] = 1.0
    return gains


def _past(k: int, rng: np.random.Generator) -> Past:
    account = rng.zipf(1.6, k) % _ACCOUNTS
    user = account * (_USERS // _ACCOUNTS) + rng.integers(0, _USERS // _ACCOUNTS, k)
    name = rng.zipf(1.4, k) % _NAMES
    # Users and names tell of the run time, so policies that learn from them have all their work.
    middle = 7.5 + rng.normal(0, 0.8, _USERS)[user] + rng.normal(0, 0.8, _NAMES)[name]
    ran_s = rng.lognormal(middle, 1.5) + 1
    end_s = np.sort(NOW_S - rng.uniform(0, _FAR_S, k))
    return Past(
        account=account.astype(np.int32),
        user=user.astype(np.int32),
        name=name.astype(np.int32),
        gpus=rng.choice(_SIZES, k, p=_SHARES).astype(np.float64),
        submit_s=end_s - ran_s - rng.exponential(3_000, k),
        start_s=end_s - ran_s,
        end_s=end_s,
        ran_s=ran_s,
        accounts=tuple(f"lab{i}" for i in range(_ACCOUNTS)),
        users=tuple(f"u{i}" for i in range(_USERS)),
        names=tuple(f"train-{i}" for i in range(_NAMES)),
    )


def measured(name: str, n_jobs: int, rounds: int, past: int) -> Took:
    """One policy at one size; a policy that fails is told with the reason, not raised."""
    try:
        policy = registry.find(name)()
        # What it imports is paid once in a daemon's life.
        intend(snapshot(10, past=50), policy)
        first, second = snapshot(n_jobs, past=past), snapshot(n_jobs, seed=2, past=past)
        order_first = measure.timed(lambda: policy.order(first))
        rounds = 1 if order_first > _SLOW_S else rounds
        times = [_STEP_S * (i + 1) for i in range(rounds)]
        orders = [
            measure.timed(lambda s=snap: policy.order(s))  # type: ignore[misc]
            for snap in (later(first, t) for t in times)
        ]
        intent_first = measure.timed(lambda: intend(second, policy))
        intents = [
            measure.timed(lambda s=snap: intend(s, policy))  # type: ignore[misc]
            for snap in (later(second, t) for t in times)
        ]
    except Exception as err:  # noqa: BLE001 - the others are measured all the same
        frame = traceback.extract_tb(err.__traceback__)[-1]
        why = f"{type(err).__name__}: {err} ({Path(frame.filename).name}:{frame.lineno})"
        return Took(policy=name, jobs=n_jobs, why=" ".join(why.split()))
    return Took(
        policy=name,
        jobs=n_jobs,
        order_first=order_first,
        order=float(np.median(orders)),
        intent_first=intent_first,
        intent=float(np.median(intents)),
    )


def _of_policy(name: str, sizes: Sequence[int], args: argparse.Namespace) -> list[Took]:
    """All sizes of one policy, in one process; what takes too long is ended and told."""
    found: list[Took] = []
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(1, measure.pin_to_one_core) as pool:
        for n_jobs in sizes:
            found.append(_within(pool, name, n_jobs, args))
            if found[-1].why:
                # A larger cluster would take longer, or fail in the same way.
                break
    return found


def _within(pool: Pool, name: str, n_jobs: int, args: argparse.Namespace) -> Took:
    asked = pool.apply_async(measured, (name, n_jobs, args.rounds, args.past))
    try:
        took: Took = asked.get(args.limit)
    except multiprocessing.TimeoutError:
        why = f"took more than {args.limit:g} s for {2 * args.rounds + 2} calls"
        return Took(policy=name, jobs=n_jobs, why=why)
    return took


def table(found: Sequence[Took]) -> list[tuple[str, ...]]:
    """A row for each policy and size, the first its titles."""
    rows: list[tuple[str, ...]] = [
        ("policy", "jobs", "order, first", "order", "intent, first", "intent", "")
    ]
    for took in found:
        times = (took.order_first, took.order, took.intent_first, took.intent)
        slow = f"**above {AIM_S:g} s**" if took.slowest > AIM_S else ""
        said = f"**failed**: {took.why}" if took.why else slow
        texts = ["-" if took.why else _short(t) for t in times]
        rows.append((took.policy, f"{took.jobs:,}", *texts, said))
    return rows


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """*rows* as a table in Markdown, the first its titles; figures stand right."""
    titles, *others = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    rule = ["---", *["---:"] * (len(titles) - 2), "---"]
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, rule, *others))


def _short(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def main() -> None:
    """Measure the policies, print the table and write the file; status 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", choices=registry.names(), action="append", help="this alone")
    parser.add_argument("--jobs", type=int, action="append", help="running and waiting together")
    parser.add_argument("--past", type=int, default=PAST, help="finished jobs that are known")
    parser.add_argument("--rounds", type=int, default=5, help="calls at later instants")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for a size at most")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    args = parser.parse_args()
    found: list[Took] = []
    print(markdown(table([])), flush=True)
    for name in args.policy or registry.names():
        measure.say(f"policies: {name}")
        took = _of_policy(name, sorted(args.jobs or JOBS), args)
        print(markdown(table(took)).split("\n", 2)[2], flush=True)
        found += took
    slow = dict.fromkeys(t.policy for t in found if t.jobs == AIM_JOBS and t.slowest > AIM_S)
    failed = dict.fromkeys(t.policy for t in found if t.why)
    print(f"\nabove {AIM_S:g} s at {AIM_JOBS:,} jobs: {', '.join(slow) or 'none'}")
    print(f"failed: {', '.join(failed) or 'none'}")
    values = {
        "machine": measure.machine(),
        "aims": {f"{AIM_JOBS}_jobs_s": AIM_S},
        "above_aim": list(slow),
        "failed": list(failed),
        "policies": [_plain(took) for took in found],
    }
    measure.RESULTS.mkdir(exist_ok=True)
    for path in (measure.RESULTS / "bench_policies.json", args.json):
        if path is not None:
            path.write_text(f"{json.dumps(values, indent=1, allow_nan=False)}\n", "utf-8")
    if failed:
        raise SystemExit(1)


def _plain(took: Took) -> dict[str, object]:
    """*took* for JSON: null where nothing was measured."""
    return {
        f"{name}_s" if isinstance(value, float) else name: None if value != value else value  # noqa: PLR0124 - NaN
        for name, value in asdict(took).items()
    }


if __name__ == "__main__":
    main()

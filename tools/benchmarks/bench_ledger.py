"""A week of finished jobs in the ledger: the file, why of one of them, the daemon's start.

The ledger is filled through its own store, with seeded jobs: each ran once or twice, one of ten was
preempted. Then a process of its own opens it as the daemon does, and takes a first look.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import generate
import measure
import numpy as np

from slurm_dl.daemon.control.job_history import LISTED_S, MOST_LISTED, with_ended
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Settings
from slurm_dl.ledger.apply_observation import FORGET_AFTER_S
from slurm_dl.ledger.attained_service import DTYPES, AttainedService, EndedRun
from slurm_dl.ledger.completions import JobEnding
from slurm_dl.ledger.sqlite.reader import LedgerReader
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.store_protocol import StoreChange
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.breaker import Taken
from slurm_dl.model.contract import Contract
from slurm_dl.model.handover import Handover, Run, Victim
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.jobs import JobState
from slurm_dl.policies.discrete_las import DiscreteLas

_Name = TypeVar("_Name")

POLICY = DiscreteLas()
SETTINGS = Settings(partitions=frozenset(generate.PARTITIONS))
FIRST_ID = 1_000_000
AT_A_TIME = 5_000
"""Jobs written in one transaction; the daemon writes those that ended since its last look."""

EMPTY = 0


def fill(store: SqliteStore, jobs: int, now_s: float, seed: int = 0) -> None:
    """Write *jobs* finished jobs of the week before *now_s*."""
    rng = np.random.default_rng(seed)
    ends_s = np.sort(now_s - rng.uniform(0.0, FORGET_AFTER_S, jobs))
    ran_s = rng.lognormal(7.0, 1.5, jobs)
    gpus = rng.choice([1.0, 2.0, 4.0, 8.0, 16.0], jobs)
    for first in range(0, jobs, AT_A_TIME):
        part = range(first, min(first + AT_A_TIME, jobs))
        endings = [_ending(i, float(ends_s[i]), float(ran_s[i]), float(gpus[i])) for i in part]
        given = [(i, e) for i, e in zip(part, endings, strict=True) if i % 10 == 0]
        store.save(
            StoreChange(
                jobs=_rows(endings),
                ended=[_run(e, e.end_s) for e in endings] + [_run(e, e.start_s) for _, e in given],
                taken=[
                    Taken(
                        at_s=e.start_s,
                        job_id=e.job_id,
                        gpus=e.gpus,
                        notice_s=9.0,
                        handover_id=HandoverId(i + 1),
                    )
                    for i, e in given
                ],
                handovers=[(_handover(i, e), "served") for i, e in given],
                endings=endings,
            )
        )


def _ending(i: int, end_s: float, ran_s: float, gpus: float) -> JobEnding:
    state = JobState.FAILED if i % 5 == 0 else JobState.COMPLETED
    return JobEnding(
        job_id=JobId(FIRST_ID + i),
        label=f"{FIRST_ID + i - i % 100}_{i % 100}",
        name=f"train-resnet-{i % 997}",
        user=f"user{i % 200}",
        account=f"lab{i % 20}",
        qos="normal",
        reason="NonZeroExitCode" if state is JobState.FAILED else "None",
        nodes=f"node{i % 2500:04}",
        ending=state.name,
        uid=1000 + i % 200,
        partition="gpu",
        state=state,
        gpus=gpus,
        start_s=end_s - ran_s,
        end_s=end_s,
        seen_s=end_s + 5.0,
    )


def _run(ending: JobEnding, end_s: float) -> EndedRun:
    ran_s = ending.end_s - ending.start_s
    gpu_s = ran_s * ending.gpus
    return EndedRun(job_id=ending.job_id, start_s=end_s - ran_s, end_s=end_s, gpu_s=gpu_s)


def _handover(i: int, ending: JobEnding) -> Handover:
    run = Run(ending.job_id, 2.0 * ending.start_s - ending.end_s, 0)
    return Handover(
        handover_id=HandoverId(i + 1),
        opened_s=ending.start_s - 9.0,
        beneficiaries=(JobId(ending.job_id + 1),),
        victims=(Victim(run=run, gpus=ending.gpus, contract=Contract()),),
        nodes=(ending.nodes,),
    )


def _rows(endings: Sequence[JobEnding]) -> AttainedService:
    columns = {name: np.zeros(len(endings), dtype=dt) for name, dt in DTYPES.items()}
    ran_s = np.array([e.end_s - e.start_s for e in endings])
    seen_s = np.array([e.seen_s for e in endings])
    told = {
        "job_id": np.array([e.job_id for e in endings]),
        "first_submit_s": seen_s - 3.0 * ran_s,
        "attained_gpu_s": ran_s * np.array([e.gpus for e in endings]),
        "ran_s": ran_s,
        "last_seen_s": seen_s,
        "over": np.ones(len(endings)),
    }
    for name, values in told.items():
        columns[name] = values.astype(DTYPES[name])
    return AttainedService(**columns)


def start(path: Path) -> dict[str, float]:
    """What a daemon does with the ledger *path* as it starts: CPU seconds, and memory in MB."""
    seen = generate.snapshot(generate.Shape(nodes=250, pending=1_000)).seen
    before_mb, _ = measure.memory_mb()
    ledger: list[Ledger] = []
    open_s = _cpu_s(lambda: ledger.append(Ledger(SqliteStore(path))))
    opened_mb, _ = measure.memory_mb()
    first_s = _cpu_s(lambda: ledger[0].book(seen))
    after_mb, peak_mb = measure.memory_mb()
    ledger[0].close()
    return {
        "open_s": open_s,
        "first_look_s": first_s,
        "before_mb": before_mb,
        "opened_mb": opened_mb,
        "after_first_look_mb": after_mb,
        "peak_mb": peak_mb,
    }


def read(path: Path, jobs: int, rounds: int) -> dict[str, measure.Seconds | int]:
    """What users ask of it: CPU seconds, each on a connection of its own as in the daemon."""
    reader = LedgerReader(path)
    snap = generate.snapshot(generate.Shape(nodes=250, pending=1_000))
    cycle = Cycle(snapshot=snap, plan=decide(snap, POLICY, SETTINGS), acting=False)
    # Those that were preempted have most to tell.
    chosen = np.random.default_rng(1).integers(0, jobs, rounds) // 10 * 10 + FIRST_ID
    ids = [JobId(i) for i in chosen.tolist()]
    known = [reader.past(i) for i in ids]
    if any(past is None or past.ending is None or not past.gave_way for past in known):
        msg = "the ledger does not know the jobs that were written into it"
        raise RuntimeError(msg)
    labels = [past.ending.label for past in known if past is not None and past.ending is not None]
    now_s = snap.now_s
    since_s = now_s - LISTED_S
    listed = with_ended(cycle, reader.ended_since(since_s, now_s, MOST_LISTED))
    return {
        "why": _each(reader.past, ids),
        "named": _each(lambda label: reader.named(label, now_s), labels),
        "listed": _each(
            lambda most: with_ended(cycle, reader.ended_since(since_s, now_s, most)),
            [MOST_LISTED] * 5,
        ),
        "jobs_listed": len(listed.snapshot.jobs) - len(snap.jobs),
    }


def _each(ask: Callable[[_Name], object], names: Sequence[_Name]) -> measure.Seconds:
    return measure.Seconds.of([_cpu_s(functools.partial(ask, name)) for name in names])


def _cpu_s(work: Callable[[], object]) -> float:
    """Processor time of *work*, seconds: what waits for others on a busy machine is not its own."""
    began = time.process_time()
    work()
    return time.process_time() - began


def sweep(path: Path, now_s: float) -> dict[str, float]:
    """The sweep that finds nothing, and the one that finds a tenth of all; seconds."""
    store = SqliteStore(path)
    nothing_s, some_s = now_s - FORGET_AFTER_S, now_s - 0.9 * FORGET_AFTER_S
    took = {
        "nothing_s": measure.timed(lambda: store.save(StoreChange(over_before_s=nothing_s))),
        "a_tenth_s": measure.timed(lambda: store.save(StoreChange(over_before_s=some_s))),
    }
    store.close()
    return took


def _measure(jobs: int, rounds: int, directory: Path) -> dict[str, object]:
    path = directory / f"ledger-{jobs}.sqlite"
    store = SqliteStore(path)
    fill_s = measure.timed(lambda: fill(store, jobs, generate.NOW_S))
    store.close()
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(1) as pool:
        started = pool.apply(start, (path,))
    found: dict[str, object] = {
        "jobs": jobs,
        "fill_s": fill_s,
        "file_mb": path.stat().st_size / 1e6,
        "start": started,
    }
    if jobs:
        found |= {"read": read(path, jobs, rounds), "sweep": sweep(path, generate.NOW_S)}
    return found


def main() -> None:
    """Measure, print the table and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000, help="finished jobs")
    parser.add_argument("--rounds", type=int, default=200, help="jobs that are asked about")
    args = parser.parse_args()
    results = {}
    rows: list[tuple[str, ...]] = [("", "an empty ledger", f"{args.jobs:,} finished jobs")]
    with tempfile.TemporaryDirectory(prefix="bench_ledger_") as name:
        for jobs in (EMPTY, args.jobs):
            measure.say(f"ledger: {jobs:,} jobs")
            results[str(jobs)] = _measure(jobs, args.rounds, Path(name))
    for what, keys in _SHOWN.items():
        rows.append((what, *(_shown(found, keys) for found in results.values())))
    measure.report("bench_ledger", {"ledgers": results}, rows)


_SHOWN = {
    "file, MB": ("file_mb",),
    "opened, CPU s": ("start", "open_s"),
    "first look, CPU s": ("start", "first_look_s"),
    "resident before, MB": ("start", "before_mb"),
    "resident once opened, MB": ("start", "opened_mb"),
    "resident after the first look, MB": ("start", "after_first_look_mb"),
    "resident at most, MB": ("start", "peak_mb"),
    "why of one, CPU": ("read", "why"),
    "its number by its name, CPU": ("read", "named"),
    "jobs of a day laid behind the list, CPU": ("read", "listed"),
    "how many": ("read", "jobs_listed"),
    "sweep that finds nothing, s": ("sweep", "nothing_s"),
    "sweep that drops a tenth, s": ("sweep", "a_tenth_s"),
}


def _shown(found: object, keys: Sequence[str]) -> str:
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return "" if found is None else f"{found:.3g}" if isinstance(found, float) else str(found)


if __name__ == "__main__":
    main()

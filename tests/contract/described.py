"""One job of an observation in plain words, compared with what is expected of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from slurm_dl.model.jobs import Bool, Held, JobState
from slurm_dl.model.snapshot import Observed

_ENDED = frozenset({JobState.COMPLETED, JobState.FAILED})
_COLUMNS = (
    *("gpus", "n_nodes", "cpus", "mem_mb", "tasks", "restarts", "priority", "uid", "submit_s"),
    *("start_s", "end_s", "limit_s", "requeueable", "exclusive"),
)
_WORDS = ("label", "name", "user", "account", "qos", "reason", "nodes")


def described(seen: Observed, row: int) -> dict[str, Any]:
    """Every field of the job at *row* that a backend must report, by name.

    ``choices`` is the names of the nodes it may use, None if it may use all; ``excluded`` those of
    the nodes it excludes; ``split`` is GPUs by the name of each node it holds; ``contract`` is
    signal, target, grace in seconds, requeuer; ``gres`` is what it takes of each node beside GPUs;
    ``deadline`` is counted from its submission, in seconds rounded to tens.
    """
    jobs = seen.jobs
    job_id = int(jobs.job_id[row])
    claim = seen.claim(job_id)
    agreed = claim.contract
    choice, excluded = seen.choices.get(job_id), seen.excluded.get(job_id)
    mine = seen.held.job == row
    held = zip(seen.held.node[mine].tolist(), seen.held.gpus[mine].tolist(), strict=True)
    words = seen.texts.get(job_id)
    deadline_s = seen.deadlines.get(job_id)
    names, asked = (seen.gres.names, seen.gres.asked) if seen.gres else ((), {})
    return {
        "state": JobState(jobs.state[row]).name,
        "held": Held(jobs.held[row]).name,
        "partition": seen.partitions[jobs.partition[row]] if jobs.partition[row] >= 0 else None,
        "also_in": [seen.partitions[p] for p in seen.also_in.get(job_id, ())],
        "gpu_type": seen.gpu_types[jobs.gpu_type[row]] if jobs.gpu_type[row] >= 0 else None,
        "choices": None if choice is None else _named(seen, choice),
        "excluded": [] if excluded is None else _named(seen, excluded),
        "unmodelled": seen.unmodelled.get(job_id),
        "gres": {name: n for name, n in zip(names, asked.get(job_id, ()), strict=False) if n},
        "deadline": deadline_s and round(deadline_s - jobs.submit_s[row].item(), -1),
        "reserved": seen.reserved.get(job_id),
        "contract": None
        if agreed is None
        else [agreed.signal, agreed.target, agreed.grace_s, agreed.requeued_by],
        "model": claim.model,
        "most_nodes": claim.most_nodes,
        "rate": claim.rate,
        "acked_run": claim.acked_run,
        "split": {seen.nodes.name[node]: gpus for node, gpus in held},
        **{name: getattr(jobs, name)[row].item() for name in _COLUMNS},
        **{name: "" if words is None else getattr(words, name) for name in _WORDS},
    }


def _named(seen: Observed, nodes: Bool) -> list[str]:
    return [name for name, is_one in zip(seen.nodes.name, nodes, strict=True) if is_one]


def wrong_in(seen: Observed, row: int, expected: Mapping[str, Any]) -> list[str]:
    """What of the job at *row* is not as *expected*."""
    actual = described(seen, row)
    return [
        f"{name} is {actual[name]!r}, not {value!r}"
        for name, value in expected.items()
        if actual[name] != value
    ]


def unsound(seen: Observed) -> list[str]:
    """What in *seen* contradicts itself; holds for every backend at every instant."""
    rows = range(len(seen.jobs))
    ids = seen.jobs.job_id.tolist()
    found = [] if len(set(ids)) == len(ids) else ["a job id stands twice"]
    if seen.unreadable:
        found.append(f"{seen.unreadable} records are unreadable")
    if set(seen.texts) != set(ids):
        found.append("not every job has words")
    for row in rows:
        job = described(seen, row)
        found += [f"job {job['label']}: {what}" for what in _wrong_times(job, seen.now_s)]
        found += [f"job {job['label']}: {what}" for what in _wrong_nodes(job)]
    return found


def _wrong_times(job: Mapping[str, Any], now_s: float) -> list[str]:
    submit_s, start_s, end_s = job["submit_s"], job["start_s"], job["end_s"]
    state = JobState[job["state"]]
    wrong = [] if 0 < submit_s <= now_s + 1 else [f"submitted at {submit_s:.0f}"]
    if state is JobState.PENDING and (start_s or end_s):
        wrong.append(f"waits, with start {start_s:.0f} and end {end_s:.0f}")
    if state is JobState.RUNNING:
        if not submit_s <= start_s <= now_s + 1:
            wrong.append(f"runs since {start_s:.0f}, submitted {submit_s:.0f}, now {now_s:.0f}")
        if end_s and not math.isinf(job["limit_s"]) and end_s != start_s + job["limit_s"]:
            wrong.append(f"runs until {end_s:.0f}, not its start and limit")
    if state in _ENDED and not start_s <= end_s <= now_s + 1:
        wrong.append(f"ran from {start_s:.0f} to {end_s:.0f}")
    return wrong


def _wrong_nodes(job: Mapping[str, Any]) -> list[str]:
    state = JobState[job["state"]]
    holds = state not in _ENDED and state is not JobState.PENDING
    wrong = []
    if holds != bool(job["split"]):
        wrong.append(f"is {state.name} and holds {job['split']}")
    if holds and sum(job["split"].values()) != job["gpus"]:
        wrong.append(f"has {job['gpus']} GPUs and holds {job['split']}")
    if holds and len(job["split"]) != job["n_nodes"]:
        wrong.append(f"has {job['n_nodes']} nodes and holds {job['split']}")
    if state is not JobState.PENDING and job["held"] != "NO":
        wrong.append(f"is {state.name} and held: {job['held']}")
    return wrong

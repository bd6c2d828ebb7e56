"""Rows of the ledger's tables as values of the model, and back; see `store`."""

from __future__ import annotations

import dataclasses
from typing import Any

from slurm_dl.model.breaker import Breaker, Restart
from slurm_dl.model.contract import Contract
from slurm_dl.model.handover import Handover, Run, Seal, Victim, VictimState
from slurm_dl.model.ids import HandoverId, JobId
from slurm_dl.model.steer import Steer


def steer_row(steer: Steer) -> tuple[object, ...]:
    """Values of *steer* in the order of its table."""
    # Names of nodes have no commas.
    nodes = (",".join(names) for names in (steer.avoid, steer.own, steer.left))
    times = (steer.since_s, steer.until_s, steer.not_before_s)
    return (steer.job_id, steer.kind, *nodes, *times, steer.why, steer.expected_start_s)


def steer_from(row: tuple[Any, ...]) -> Steer:
    """The steer that `steer_row` wrote."""
    job_id, kind, avoid, own, left, since_s, until_s, not_before_s, why, expected_start_s = row
    return Steer(
        job_id=JobId(job_id),
        kind=kind,
        avoid=tuple(avoid.split(",")) if avoid else (),
        own=tuple(own.split(",")) if own else (),
        left=tuple(left.split(",")) if left else (),
        since_s=since_s,
        until_s=until_s,
        not_before_s=not_before_s,
        why=why,
        expected_start_s=expected_start_s,
    )


def restart_from(row: tuple[Any, ...]) -> Restart:
    """The restart in a row of its table."""
    job_id, restarts, gpus, requeued_s, handover_id, restarted_s, fate, settled_s, uid = row
    return Restart(
        job_id=JobId(job_id),
        restarts=restarts,
        gpus=gpus,
        requeued_s=requeued_s,
        handover_id=HandoverId(handover_id),
        restarted_s=restarted_s,
        fate=fate,
        settled_s=settled_s,
        uid=uid,
    )


def breaker_row(breaker: Breaker) -> tuple[object, ...]:
    """Values of *breaker* in the order of its table."""
    jobs = ",".join(str(j) for j in breaker.jobs)
    name, tripped_s, why, _, *reset = dataclasses.astuple(breaker)
    return (name, tripped_s, why, jobs, *reset)


def breaker_from(row: tuple[Any, ...]) -> Breaker:
    """The breaker that `breaker_row` wrote."""
    name, tripped_s, why, jobs, reset_s, reset_by, counts_from, rearm_s = row
    return Breaker(
        name=name,
        tripped_s=tripped_s,
        why=why,
        jobs=tuple(JobId(int(j)) for j in jobs.split(",")) if jobs else (),
        reset_s=reset_s,
        reset_by=reset_by,
        counts_from=HandoverId(counts_from),
        rearm_s=rearm_s,
    )


def handover_from(body: dict[str, Any]) -> Handover:
    """The hand-over whose JSON *body* is."""
    return Handover(
        handover_id=HandoverId(body["handover_id"]),
        opened_s=body["opened_s"],
        beneficiaries=tuple(JobId(j) for j in body["beneficiaries"]),
        victims=tuple(_victim_from(v) for v in body["victims"]),
        nodes=tuple(body["nodes"]),
        attached=tuple(JobId(j) for j in body["attached"]),
        seal=Seal(body["seal"]),
        purpose=body.get("purpose", "preempt"),
        seats=tuple(body.get("seats", ())),
        apart=tuple(body.get("apart", ())),
    )


def _victim_from(body: dict[str, Any]) -> Victim:
    run = body["run"]
    return Victim(
        run=Run(JobId(run["job_id"]), run["start_s"], run["restarts"]),
        gpus=body["gpus"],
        contract=Contract(**body["contract"]),
        state=VictimState(body["state"]),
        signalled_s=body["signalled_s"],
        gone_s=body["gone_s"],
        outcome=body["outcome"],
        ended=body.get("ended", 0),
        tries=body.get("tries", 0),
    )

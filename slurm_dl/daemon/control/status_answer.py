"""The answer to ``status``, and the header of every answer; `privacy` filters both."""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

import slurm_dl
from slurm_dl.config.loading import FILE_KEY
from slurm_dl.config.placement_section import PlacementSection
from slurm_dl.daemon import forecast_service as when
from slurm_dl.daemon.audit_log import AuditLog
from slurm_dl.daemon.breaker_resets import breakers_of, not_here
from slurm_dl.daemon.control.job_history import JobHistory
from slurm_dl.daemon.control.wire_format import PROTOCOL
from slurm_dl.daemon.live_recordings import LiveRecordings
from slurm_dl.daemon.preconditions import PauseSwitch
from slurm_dl.daemon.published_state import LETTERS, Board, PublishedState, Reloaded
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.settings import Breakers
from slurm_dl.json_types import Json, JsonObject
from slurm_dl.model.breaker import Breaker, BreakerName
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.handover import Handover
from slurm_dl.model.jobs import F64, JobState
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.cells.hived import Cells
from slurm_dl.placement.free_nodes import FreeNodes
from slurm_dl.placement.synergy import Share
from slurm_dl.text import ago


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlContext:
    """The parts of the daemon that a request may read or move.

    Attributes:
        reload: Read the configuration again on behalf of an actor; waits for the outcome.
        reset_breaker: Let a breaker go on behalf of an actor; gives the breaker as it was, or
            raises `NotResetError`.
    """

    board: Board
    audit: AuditLog
    pause: PauseSwitch
    reload: Callable[[str], Reloaded]
    wake: Callable[[], None]  # Begin the next cycle now
    reset_breaker: Callable[[BreakerName, str], Breaker] = not_here
    past: JobHistory = field(default_factory=JobHistory)  # What became of jobs
    recordings: LiveRecordings = field(default_factory=LiveRecordings)  # Told of each cycle


_STALE_POLLS = 2  # A look is stale that is older than so many polls


def status(context: ControlContext) -> JsonObject:
    """The daemon's state, in numbers and in one sentence."""
    now = context.board.current
    answer: JsonObject = {
        "protocol": PROTOCOL,
        "version": slurm_dl.__version__,
        "pid": os.getpid(),
        "started_s": now.started_s,
        "now_s": time.time(),
        "live": now.live,
        "policy": now.config.policy.order,
        "preemption": now.config.preemption.in_words(),
        "placement": now.config.placement.in_words(),
        "config_file": next((row.text for row in now.config_rows if row.key == FILE_KEY), None),
        "cycles": now.cycles,
        "seen_s": now.seen_s or None,
        "next_poll_s": now.next_poll_s or None,
        "failures": now.failures,
        "problems": [dataclasses.asdict(problem) for problem in context.board.problems()],
        "checked_s": context.board.checked_s() or None,
        "bugs": now.bugs,
        "trouble": {"at_s": now.trouble.at_s, "message": now.trouble.message}
        if now.trouble
        else None,
        "reloaded": {"at_s": last.at_s, "ok": last.ok, "message": last.message}
        if (last := now.reloaded)
        else None,
        "reader": None
        if now.reader is None
        else {"name": now.reader.reader, "reason": now.reader.reason},
        "audit": {"path": str(context.audit.path), "error": context.audit.error or None},
        "actions": {"done": now.done, "failed": now.failed},
        "steers_ended": {
            "honoured": now.steers_ended.get("honoured", 0),
            "not_honoured": now.steers_ended.get("not honoured", 0),
        },
        "durations_ms": {
            "observe": round(now.durations.observe_ms, 1),
            "decide": round(now.durations.decide_ms, 1),
            "apply": round(now.durations.apply_ms, 1),
        },
        "slurmctld": _slurmctld(now),
        **standing_of(context),
    }
    if now.cycle is not None:
        answer |= _numbers(now.cycle)
        limits = Breakers(**now.config.breakers.model_dump())
        answer["breakers"] = breakers_of(now.cycle, limits, now.resets)
        answer["forecasts"] = when.score_of(when.forecasts_of_daemon())
        answer["misfit"] = misfit(now.config.placement, now.cycle.snapshot) or None
    return answer


def doing(context: ControlContext) -> str:
    """The daemon's present activity, as a claim about its next cycle."""
    now = context.board.current
    idle = "plans and touches nothing"
    if now.config.preemption.mode == "native":
        idle += "; Slurm goes on preempting by the last SiteFactors"
    first = (
        (not context.audit.healthy, "only looking: the audit log cannot be written"),
        (now.bugs_in_a_row, "nothing: a bug ended the last cycle; see the log, and report it"),
        (now.failures, f"waiting: {now.failures} polls in a row failed"),
        (not now.live, f"shadow mode: {idle}"),
        (context.pause.pause is not None, f"paused: {idle}"),
        (now.idle, f"only looking: {now.idle}"),
        (now.looks_left, f"only looking for {now.looks_left} more cycles"),
    )
    return next((text for holds, text in first if holds), "") or _acting(now)


def _acting(now: PublishedState) -> str:
    health = now.controller_health
    left_s = health.distrust_until_s - time.time()
    if health.distrust and left_s > 0:
        return f"acting, but no GPUs are taken back for {ago(left_s)}: {health.distrust}"
    return "acting"


def _slurmctld(now: PublishedState) -> JsonObject:
    """Its clock, and why it is asked less often, or told less, than configured."""
    health = now.controller_health
    return {
        "clock": health.clock,
        "ahead_s": round(health.ahead_s, 1),
        "jumps": health.jumps,
        "distrust": health.distrust or None,
        "distrust_until_s": health.distrust_until_s or None,
        "slow": health.slow or None,
        "poll_s": now.poll_s,
        "writes_held": health.writes_held or None,
    }


def standing_of(context: ControlContext) -> JsonObject:
    """Header of every answer: age of the data, pause, last error."""
    now = context.board.current
    age_s = round(time.time() - now.seen_s, 1) if now.seen_s else None
    lost = now.failures or now.bugs_in_a_row
    return {
        "doing": doing(context),
        "paused": paused_of(context.pause),
        "age_s": age_s,
        "stale": age_s is not None and age_s > _STALE_POLLS * now.poll_s,
        "last_error": now.trouble.message if now.trouble and lost else None,
    }


def _numbers(cycle: Cycle) -> JsonObject:
    snap, plan = cycle.snapshot, cycle.plan
    states = Counter(snap.jobs.state.tolist())
    live = snap.jobs.state < JobState.COMPLETED
    tiers: list[Json] = [
        {"tier": tier, "pending": pending, "running": running}
        for tier, pending, running in tiers_of(cycle)
    ]
    nodes = snap.seen.nodes
    return {
        "jobs": {LETTERS[s]: states.get(int(s), 0) for s in JobState},
        "managed_jobs": int((snap.managed_jobs & live).sum()),
        "unreadable": snap.seen.unreadable,
        "tiers": tiers,
        "gpus": {
            "all": float(nodes.gpus.sum()),
            "up": float(nodes.gpus[nodes.up].sum()),
            "held": float(snap.seen.held.gpus.sum()),
            "stranded": stranded_gpus(snap),
        },
        "planned": len(plan.actions),
        "left": len(cycle.left),
        "handovers": [_handover(h) for h in snap.handovers],
        "steers": steers_of(cycle),
    }


def steers_of(cycle: Cycle) -> JsonObject:
    """Jobs that are steered while they wait, by what for."""
    kinds = Counter(steer.kind for steer in cycle.snapshot.steers.values())
    return {kind: kinds[kind] for kind in ("spot", "wait", "over")}


def tiers_of(cycle: Cycle) -> list[tuple[int, int, int]]:
    """Each tier with its pending jobs and those that hold GPUs."""
    tier, state = cycle.plan.tier, cycle.snapshot.jobs.state
    pending = state == JobState.PENDING
    holds = (state > JobState.PENDING) & (state < JobState.COMPLETED)
    return [
        (t, int(((tier == t) & pending).sum()), int(((tier == t) & holds).sum()))
        for t in range(int(tier.max(initial=-1)) + 1)
    ]


def _handover(handover: Handover) -> JsonObject:
    victims: list[Json] = [
        {
            "job": v.run.job_id,
            "state": str(v.state),
            "signalled_s": v.signalled_s or None,
            "outcome": v.outcome or None,
        }
        for v in handover.victims
    ]
    return {
        "handover": handover.handover_id,
        "opened_s": handover.opened_s,
        "purpose": handover.purpose,
        "beneficiaries": list(handover.beneficiaries),
        "victims": victims,
        "nodes": list(handover.nodes),
        "seal": str(handover.seal),
    }


def paused_of(switch: PauseSwitch) -> JsonObject | None:
    """User, time and reason of the pause; None if not paused."""
    return switch.pause.as_json() if switch.pause else None


def stranded_gpus(snap: Snapshot) -> float:
    """Free GPUs on nodes that have no CPUs or no memory left to go with them."""
    free_nodes = FreeNodes.of(snap, {})
    return float(stranded_by_group(free_nodes) @ free_nodes.count)


def misfit(section: PlacementSection, snap: Snapshot) -> str:
    """The reason why the cluster cannot keep the promises of the cells; empty if it can."""
    scheme, _ = section.make()
    if not isinstance(scheme, Cells):
        return ""
    try:
        scheme.check(snap)
    except ConfigError as err:
        return str(err)
    return ""


# GPUs that are free and of no use: their node has no CPUs or no memory left to go with them.
def stranded_by_group(free_nodes: FreeNodes, smallest: Share | None = None) -> F64:
    """``(v,)`` free GPUs on one node of each condition in *free_nodes* that nobody can use.

    All free GPUs of a node count if what is left there does not do for one GPU; multiply by
    `NodeGroups.count` for the sum.

    Args:
        smallest: Least CPUs and memory that go with one GPU; None: the part of the node that does.
    """
    whole = free_nodes.groups[free_nodes.group]
    gpus, cpus, mem_mb = whole[:, 2], whole[:, 3], whole[:, 4]
    if smallest is None:
        parts = np.maximum(gpus, 1.0)
        need_cpus, need_mem_mb = np.floor(cpus / parts), np.floor(mem_mb / parts)
    else:
        need_cpus = np.full(len(whole), float(smallest.cpus))
        need_mem_mb = np.full(len(whole), float(smallest.mem_mb))
    free = np.floor(np.maximum(free_nodes.gpus, 0.0))
    lacks = (free_nodes.cpus < need_cpus) | (free_nodes.mem_mb < need_mem_mb)
    stranded: F64 = np.where(lacks & (free_nodes.count > 0), free, 0.0)
    return stranded

"""Whether jobs can give way: what a requeue costs, and who else preempts."""

from __future__ import annotations

from slurm_dl.apps.doctor.controller import Partition
from slurm_dl.apps.doctor.findings import Findings, need
from slurm_dl.apps.doctor.verdict import Verdict, error, ok, warning

_LONG_HOLD_S = 120
_NO_PREEMPTION = frozenset({"", "preempt/none"})


def requeue_hold(found: Findings) -> Verdict:
    """Slurm keeps a requeued job from starting for a while; two minutes unless told otherwise."""
    hold_s, setting = found.controller.requeue_hold
    told = f"a requeued job waits {hold_s} s before it may start ({setting})"
    if hold_s < _LONG_HOLD_S:
        return ok(told)
    return warning(
        f"{told}: each preempted job loses that on top of its restart",
        f"{setting}=30 in slurm.conf, if jobs are gone from their nodes by then",
    )


def job_requeue(found: Findings) -> Verdict:
    """Only jobs that may be requeued can give way."""
    if found.controller.whole("JobRequeue") != 0:
        return ok("JobRequeue=1: batch jobs can be requeued")
    return warning(
        "JobRequeue=0: only jobs submitted with --requeue can give way, as dlsubmit's are",
        "set JobRequeue=1 in slurm.conf, unless that is meant",
    )


def who_preempts(found: Findings) -> Verdict:
    """Who takes GPUs back: nobody, dlschedd or Slurm; and whether that one can."""
    preemption = found.config.preemption
    if preemption.mode == "native":
        own = need(found.native)
        advice = "see 'Native preemption' in the admin guide"
        if own.lacks:
            return error("; ".join(own.lacks), advice)
        if own.remark:
            return warning(own.remark, advice)
        return ok(f"Slurm preempts inside QOS {preemption.qos} and is set up for it")
    if not preemption.enabled:
        return ok("nobody is preempted (preemption.enabled is false)")
    return _external(found)


def _external(found: Findings) -> Verdict:
    controller = found.controller
    plugin = controller.text("PreemptType").lower()
    modes = controller.text("PreemptMode")
    if "gang" in modes.lower().split(","):
        return warning(
            f"PreemptMode={modes}: suspended jobs keep their GPUs",
            "take GANG out of PreemptMode in slurm.conf",
        )
    exposed = [p.name for p in found.managed() if _is_exposed(p, plugin)]
    if plugin in _NO_PREEMPTION or not exposed:
        return ok("dlschedd preempts, Slurm does not")
    advice = (
        "PreemptMode=OFF for these partitions in slurm.conf"
        if plugin.endswith("partition_prio")
        else "no QOS of their jobs may preempt another of theirs; or preemption.mode: native"
    )
    return warning(
        f"PreemptType={plugin}: in {', '.join(exposed)} Slurm may stop jobs that dlschedd "
        "has chosen to keep",
        advice,
    )


def _is_exposed(partition: Partition, plugin: str) -> bool:
    """Whether Slurm may preempt its jobs; a partition's own mode counts for one plug-in only."""
    return not (
        plugin.endswith("partition_prio") and partition.text("PreemptMode").upper() == "OFF"
    )


def sharing(found: Findings) -> Verdict:
    """How a partition gives out its nodes."""
    notes = [note for p in found.managed() for note in _notes(p)]
    if notes:
        return warning("; ".join(notes), "change the partition in slurm.conf, unless it is meant")
    graces = [p for p in found.managed() if p.text("GraceTime") not in {"", "0"}]
    if graces and found.config.preemption.mode == "external":
        told = ", ".join(f"{p.name} {p.text('GraceTime')} s" for p in graces)
        return ok(f"GraceTime ({told}) is Slurm's; preemption.max_grace_s is what counts here")
    return ok("nodes of managed partitions are shared by GPU, and jobs do not share GPUs")


def _notes(partition: Partition) -> list[str]:
    share = partition.text("OverSubscribe").upper()
    notes = []
    if share.startswith("FORCE"):
        notes.append(f"OverSubscribe={share} in {partition.name}: jobs share their CPUs")
    # 26.05 has a key of its own for it.
    if share == "EXCLUSIVE" or partition.text("Exclusive").upper() in {"NODE", "TOPO"}:
        notes.append(f"{partition.name} gives out whole nodes, whatever GPUs a job asks for")
    if partition.text("LLN").upper() == "YES":
        notes.append(f"LLN=YES in {partition.name} spreads small jobs: big ones find no room")
    return notes

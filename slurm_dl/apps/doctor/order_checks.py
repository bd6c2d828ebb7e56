"""Whether SiteFactors order the queue: what else has a say in it, and how far Slurm looks."""

from __future__ import annotations

import re

from slurm_dl.apps.doctor.findings import Findings
from slurm_dl.apps.doctor.verdict import CannotTellError, Verdict, error, ok, warning

_WEIGHTS = ("Age", "Assoc", "FairShare", "JobSize", "Partition", "QOS", "TRES")
_WEIGHT = re.compile(r"(?:[^=]+=)?([0-9]{1,12})(?:\.[0-9]*)?", re.ASCII)
_BACKFILL_DEPTH = 500
_BACKFILL_WINDOW_MIN = 1440


def priority_plugin(found: Findings) -> Verdict:
    """With priority/basic Slurm accepts SiteFactor and ignores it."""
    plugin = found.controller.text("PriorityType")
    if plugin.lower() == "priority/multifactor":
        return ok(plugin)
    return error(
        f"PriorityType={plugin}: SiteFactor is accepted and ignored",
        "set PriorityType=priority/multifactor in slurm.conf and restart slurmctld",
    )


def site_factor_plugin(found: Findings) -> Verdict:
    """A plug-in of the site would set the SiteFactors that we set."""
    plugin = found.controller.text("PrioritySiteFactorPlugin")
    if plugin.lower() in {"", "site_factor/none"}:
        return ok("none: nobody else sets SiteFactor")
    return error(
        f"PrioritySiteFactorPlugin={plugin} overwrites what dlschedd sets",
        "take it out of slurm.conf and restart slurmctld",
    )


def priority_weights(found: Findings) -> Verdict:
    """Slurm's own factors must stay within a band, and in native mode within half of one."""
    controller, config = found.controller, found.config
    total = 0
    for name in _WEIGHTS:
        text = controller.text(f"PriorityWeight{name}")
        for part in filter(None, text.split(",")):
            weight = _WEIGHT.fullmatch(part.strip())
            if weight is None:
                msg = f"PriorityWeight{name} is {text[:60]!r}, which is no weight"
                raise CannotTellError(msg)
            total += int(weight[1])
    width = config.ranking.band_width
    native = config.preemption.mode == "native"
    most = width // 2 if native else width
    what = "half of ranking.band_width" if native else "ranking.band_width"
    told = f"the weights add up to {total}, {what} is {most}"
    if total >= most:
        return error(
            f"{told}: jobs of different tiers mix",
            f"raise ranking.band_width above {total * (2 if native else 1)}, or lower the "
            "PriorityWeight settings in slurm.conf",
        )
    # These make a factor a plain number in place of a share of 1.
    flags = [f for f in controller.options("PriorityFlags") if f.startswith("no_normal_")]
    if flags:
        return warning(
            f"{told}, but PriorityFlags={','.join(flags).upper()}: factors may exceed 1",
            "see with sprio that no factor but SITE comes near ranking.band_width",
        )
    return ok(told)


def partition_tiers(found: Findings) -> Verdict:
    """Slurm sorts by the partition's tier before it looks at priorities."""
    tiers = {p.name: p.text("PriorityTier") for p in found.managed()}
    if len(set(tiers.values())) == 1:
        return ok(f"PriorityTier {next(iter(tiers.values())) or 'not told'} for all managed")
    told = ", ".join(f"{name} {tier}" for name, tier in tiers.items())
    return warning(
        f"PriorityTier differs: {told}; Slurm serves the higher one first, whatever the order",
        "give managed partitions that share nodes the same PriorityTier, unless that is meant",
    )


def backfill_depth(found: Findings) -> Verdict:
    """Jobs beyond the window have the SiteFactor of long ago, and backfill may look at them."""
    kind = found.controller.text("SchedulerType")
    if not kind.lower().endswith("backfill"):
        return warning(
            f"SchedulerType={kind}: one job that does not fit holds up all behind it",
            "set SchedulerType=sched/backfill in slurm.conf and restart slurmctld",
        )
    depth = found.controller.option("SchedulerParameters", "bf_max_job_test", _BACKFILL_DEPTH)
    window = found.config.ranking.window
    told = f"backfill looks at {depth} jobs, ranking.window is {window}"
    if depth <= window:
        return ok(told)
    return warning(
        f"{told}: jobs beyond the window are served in an old order",
        f"raise ranking.window to {depth}, or lower bf_max_job_test",
    )


def backfill_window(found: Findings) -> Verdict:
    """Backfill protects a big job's start only as far ahead as it looks."""
    minutes = found.controller.option("SchedulerParameters", "bf_window", _BACKFILL_WINDOW_MIN)
    longest = max(found.managed(), key=lambda p: p.limit_s)
    limit_min = longest.limit_s / 60
    if limit_min <= minutes:
        return ok(f"backfill looks {minutes} min ahead, time limits are at most {limit_min:g} min")
    limit = longest.text("MaxTime")
    return warning(
        f"backfill looks {minutes} min ahead, MaxTime of {longest.name} is {limit}: small jobs "
        "may hold big ones up",
        "raise bf_window in SchedulerParameters (with bf_resolution), or give the partition a "
        "shorter MaxTime",
    )


def gpus(found: Findings) -> Verdict:
    """Slurm has to know GPUs, and to give out parts of a node."""
    select = found.controller.text("SelectType")
    kinds = found.controller.text("GresTypes").lower().split(",")
    if "gpu" not in [kind.strip() for kind in kinds]:
        return error(
            "GresTypes has no gpu: jobs have no GPUs that Slurm knows of",
            "set GresTypes=gpu in slurm.conf and describe the GPUs in gres.conf",
        )
    if select.lower() != "select/cons_tres":
        return warning(
            f"SelectType={select}: --gpus and the like need select/cons_tres",
            "set SelectType=select/cons_tres in slurm.conf and restart slurmctld",
        )
    return ok(f"{select}, gpu in GresTypes")

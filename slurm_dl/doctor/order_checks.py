"""Whether SiteFactors order the queue: what else has a say in it, and how far Slurm looks."""

from __future__ import annotations

import math
import re

from slurm_dl.doctor.controller_config import CannotTellError, duration_s
from slurm_dl.doctor.site import CheckResult, Site, check, error, ok, warning
from slurm_dl.engine.waiting_line import WIDEST_BAND
from slurm_dl.slurm.controller import PLUGIN
from slurm_dl.slurm.controller import site_factor_plugin as configured_plugin
from slurm_dl.slurm.releases import Release

_WEIGHTS = ("Age", "Assoc", "FairShare", "JobSize", "Partition", "QOS", "TRES")
_WEIGHT = re.compile(r"(?:[^=]+=)?([0-9]{1,12})(?:\.[0-9]*)?", re.ASCII)
_BACKFILL_DEPTH = 500
_BACKFILL_WINDOW_MIN = 1440
_WEEK_MIN = 10_080
_MINUTE_S = 60.0
_RECALCULATES_ALONE = Release(24, 5)
"""From here on Slurm computes priorities again without slurmdbd, too."""

_UNLIMITED_MIN = 43_200  # The longest bf_window that Slurm takes: 30 days


@check("priority plugin")
def priority_plugin(site: Site) -> CheckResult:
    """With priority/basic Slurm accepts SiteFactor and ignores it."""
    plugin = site.controller.text("PriorityType")
    if plugin.lower() == "priority/multifactor":
        return ok(plugin)
    return error(
        f"PriorityType={plugin}: SiteFactor is accepted and ignored",
        "in slurm.conf: PriorityType=priority/multifactor; then restart slurmctld",
    )


@check("site factor")
def site_factor_plugin(site: Site) -> CheckResult:
    """A plug-in of the site would set the SiteFactors that we set."""
    # Slurm does not always show it.
    plugin = configured_plugin(site.controller.values, site.slurm.slurm_conf)
    plugin = plugin or site.controller.text(PLUGIN)
    if plugin.lower() in {"", "site_factor/none"}:
        return ok("none: nobody else sets SiteFactor")
    return error(
        f"PrioritySiteFactorPlugin={plugin} overwrites what dlschedd sets",
        "in slurm.conf: PrioritySiteFactorPlugin=site_factor/none; then restart slurmctld",
    )


@check("priority weights")
def priority_weights(site: Site) -> CheckResult:
    """Slurm's own factors must stay below the distance between two SiteFactors.

    In native mode that is half a band: a running job is half a band above the waiting ones.
    """
    controller, config = site.controller, site.config
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
        wrong = "jobs of different tiers mix" if native else "they change the order of waiting jobs"
        # A tenth more than needed: weights grow.
        wide = total * (2 if native else 1) * 11 // 10 + 1
        lower = "lower the PriorityWeight settings in slurm.conf"
        if wide > WIDEST_BAND:
            return error(f"{told}: {wrong}", f"{lower}; band_width is {WIDEST_BAND} at most")
        return error(
            f"{told}: {wrong}", f"in slurm_dl.yaml: ranking: {{band_width: {wide}}}; or {lower}"
        )
    # These make a factor a plain number in place of a share of 1.
    flags = [f for f in controller.options("PriorityFlags") if f.startswith("no_normal_")]
    if flags:
        return warning(
            f"{told}, but PriorityFlags={','.join(flags).upper()}: factors may exceed 1",
            "see with sprio that no factor but SITE comes near ranking.band_width",
        )
    if total and native:
        return ok(f"{told}; inside a tier the weights decide")
    if total and config.ranking.equals == "site":
        return ok(f"{told}; they decide between jobs that the policy does not tell apart")
    return ok(told)


@check("priority flags")
def priority_flags(site: Site) -> CheckResult:
    """Under INCR_ONLY a job that falls back in the order keeps its priority."""
    flags = site.controller.options("PriorityFlags")
    if "incr_only" not in flags:
        return ok("priorities may fall (no INCR_ONLY)")
    return error(
        "PriorityFlags has INCR_ONLY: a job that falls back in the order keeps its priority",
        f"in slurm.conf: {site.controller.line_without('PriorityFlags', 'incr_only')}; then "
        "restart slurmctld",
    )


@check("partition tiers")
def partition_tiers(site: Site) -> CheckResult:
    """Slurm sorts by the partition's tier before it looks at priorities.

    Partitions that are not managed count too, if they have nodes of managed ones.
    """
    sharing = {name for of in site.nodes.values() for name in of.get("Partitions", "").split(",")}
    beside = [site.partitions[name] for name in sorted(sharing & site.partitions.keys())]
    tiers = {p.name: p.text("PriorityTier") for p in (*site.managed, *beside)}
    if len(set(tiers.values())) == 1:
        tier = next(iter(tiers.values())) or "not told"
        return ok(f"PriorityTier {tier} for all managed, and for all that share nodes with them")
    told = ", ".join(f"{name} {tier}" for name, tier in tiers.items())
    first = next(iter(tiers.values()))
    others = ", ".join(name for name, tier in tiers.items() if tier != first)
    return warning(
        f"PriorityTier differs: {told}; as in Slurm, jobs of the higher one come first, managed or "
        "not: slurm_dl frees no node that they wait for, and stops none of them, for a lower one",
        f"in slurm.conf, partitions {others}: PriorityTier={first}; unless they share no nodes or "
        "that is meant",
    )


@check("gpus")
def gpus(site: Site) -> CheckResult:
    """Slurm has to know GPUs, and to give out parts of a node."""
    select = site.controller.text("SelectType")
    kinds = site.controller.text("GresTypes").lower().split(",")
    if "gpu" not in [kind.strip() for kind in kinds]:
        return error(
            "GresTypes has no gpu: jobs have no GPUs that Slurm knows of",
            f"in slurm.conf: {site.controller.line_with('GresTypes', 'gpu')}; and describe the "
            "GPUs in gres.conf",
        )
    if select.lower() != "select/cons_tres":
        return warning(
            f"SelectType={select}: --gpus and the like need select/cons_tres",
            "in slurm.conf: SelectType=select/cons_tres; then restart slurmctld",
        )
    return ok(f"{select}, gpu in GresTypes")


@check("backfill depth")
def backfill_depth(site: Site) -> CheckResult:
    """Jobs beyond the window have the SiteFactor of long ago, and backfill may look at them."""
    kind = site.controller.text("SchedulerType")
    if not kind.lower().endswith("backfill"):
        return warning(
            f"SchedulerType={kind}: one job that does not fit holds up all behind it",
            "in slurm.conf: SchedulerType=sched/backfill; then restart slurmctld",
        )
    depth = site.controller.option("SchedulerParameters", "bf_max_job_test", _BACKFILL_DEPTH)
    window = site.config.ranking.window
    told = f"backfill looks at {depth} jobs, ranking.window is {window}"
    if depth <= window:
        return ok(told)
    return warning(
        f"{told}: jobs beyond the window are served in an old order",
        f"in slurm_dl.yaml: ranking: {{window: {depth}}}; or lower bf_max_job_test",
    )


@check("backfill window")
def backfill_window(site: Site) -> CheckResult:
    """Backfill protects a big job's start only as far ahead as it looks."""
    minutes = site.controller.option("SchedulerParameters", "bf_window", _BACKFILL_WINDOW_MIN)
    longest = max(site.managed, key=lambda p: p.limit_s)
    limit_min = longest.limit_s / 60
    if limit_min <= minutes:
        return ok(f"backfill looks {minutes} min ahead, time limits are at most {limit_min:g} min")
    limit = longest.text("MaxTime")
    # Seven days, where there is no limit to go by.
    needed_min = min(max(1, math.ceil(limit_min)), _UNLIMITED_MIN) if limit_min < math.inf else 0
    line = site.controller.line_with("SchedulerParameters", "bf_window", needed_min or _WEEK_MIN)
    shorter = (
        "" if needed_min else f"; in slurm.conf, partitions {longest.name}: MaxTime=7-00:00:00"
    )
    return warning(
        f"backfill looks {minutes} min ahead, MaxTime of {longest.name} is {limit}: small jobs "
        "may hold big ones up",
        f"in slurm.conf: {line}{shorter}; a longer bf_resolution keeps it quick",
    )


@check("backfill passes")
def backfill_passes(site: Site) -> CheckResult:
    """A write during a pass of backfill is undone with bf_continue, and ends the pass without.

    Measured on 22.05.8, 24.11.5 and 26.05.5; passes shorter than bf_yield_interval (2 s) are whole.
    """
    controller = site.controller
    period = controller.text("PriorityCalcPeriod")
    period_s = duration_s(period, "PriorityCalcPeriod")
    calc = "PriorityCalcPeriod=1"
    if "bf_continue" not in controller.options("SchedulerParameters"):
        line = controller.line_with("SchedulerParameters", "bf_continue")
        return warning(
            "no bf_continue: while a backfill pass is under way each change of a job or node ends "
            "it, so it tests few of the waiting jobs",
            f"in slurm.conf: {line}; in slurm.conf: {calc}; the second because Slurm then undoes "
            "some of what is written during a pass, until it computes priorities again",
        )
    if period_s > _MINUTE_S:
        return warning(
            f"PriorityCalcPeriod={period}: Slurm undoes some of what is written during a backfill "
            f"pass; that lasts until dlschedd writes it again, or for {period}",
            f"in slurm.conf: {calc}; priorities are then computed each minute",
        )
    if controller.has_accounting or controller.release >= _RECALCULATES_ALONE:
        return ok("bf_continue, and priorities are computed each minute")
    return ok(
        "bf_continue; without slurmdbd this release never computes priorities again: dlschedd "
        "writes again what a pass has undone"
    )

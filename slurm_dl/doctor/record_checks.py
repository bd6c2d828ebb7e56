"""Whether Slurm tells and keeps what dlschedd counts by, and lets it call often enough."""

from __future__ import annotations

import math
import re
import time
from collections import Counter

from slurm_dl.daemon.replica_counts import OLD_S, read_rate
from slurm_dl.doctor.site import CheckResult, Site, check, error, ok, warning
from slurm_dl.doctor.slurm_checks import is_exempt
from slurm_dl.model.errors import ConfigError
from slurm_dl.slurm.preflight import ENOUGH, to_operator
from slurm_dl.slurm.read.associations import in_force
from slurm_dl.slurm.read.conditions import CONDITION_ARGUMENTS, read_conditions, read_licences
from slurm_dl.slurm.read.grammar import gres_items, keeps_for_itself
from slurm_dl.text import escaped

_MIG = re.compile(r"[0-9]g\.[0-9]+gb")


@check("nodes")
def nodes(site: Site) -> CheckResult:
    """Nodes that keep cores for their own daemons, and nodes with GPUs of several types."""
    keep = [name for name, words in site.nodes.items() if keeps_for_itself(words)]
    told = "no node keeps cores or memory for itself"
    if keep:
        told = (
            f"{len(keep)} nodes keep cores or memory for themselves (CoreSpecCount, MemSpecLimit), "
            f"such as {keep[0]}, of which the rest is counted"
        )
    types = {
        name: {kind for what, kind, _ in gres_items(words.get("Gres", "")) if what == "gpu"}
        for name, words in site.nodes.items()
    }
    mixed = [name for name, of in types.items() if len(of) > 1]
    if not mixed:
        return ok(f"{told}; each node has GPUs of one type")
    told += f"; {len(mixed)} nodes have GPUs of several types, such as {mixed[0]} "
    told += f"({', '.join(sorted(types[mixed[0]]))})"
    slices = {kind for of in types.values() for kind in of if _MIG.search(kind)}
    unweighted = sorted(slices - site.config.service.weights.keys())
    if not unweighted:
        return ok(told)
    return warning(
        f"{told}, and {unweighted[0]}, a part of a GPU, counts as a whole one",
        "say what part of a GPU each MIG profile is in service.weights, for example "
        f"{{{unweighted[0]}: 0.14}}",
    )


@check("unknown conditions")
def unknown_conditions(site: Site) -> CheckResult:
    """Pending jobs of managed partitions with options that are not understood."""
    managed = ",".join(partition.name for partition in site.managed)
    text = site.ask("squeue", f"--partition={managed}", *CONDITION_ARGUMENTS)
    told, unreadable = read_conditions(text)
    licences = read_licences(site.slurm) if any(asked.licences for asked in told.values()) else {}
    counts = Counter(option for asked in told.values() for option in asked.unknown(licences))
    counts.update(escaped(line)[:80] for line in unreadable)
    if not counts:
        return ok("no pending job asks for what is not understood")
    named = ", ".join(f"{option} ({jobs})" for option, jobs in sorted(counts.items()))
    return warning(
        f"pending jobs have options of which it is not known which nodes would do: {named}",
        "tell their owners: no GPUs are taken back for such jobs, Slurm starts them once there is "
        "room",
    )


@check("service rates")
def service_rates(site: Site) -> CheckResult:
    """Rates of services that cannot be read or are old."""
    services = site.config.replicas.services
    wrong = []
    for name, service in services.items():
        try:
            age_s = time.time() - read_rate(service.rate)[0][-1]
        except ConfigError as err:
            wrong.append(f"{name}: {err}")
            continue
        if abs(age_s) > OLD_S:
            wrong.append(f"{name}: the last rate is {age_s:.0f} s old")
    if not wrong:
        return ok(f"{len(services)} services, each with a rate of now")
    return warning(
        f"{'; '.join(wrong)}: the last count of replicas stays",
        "see docs/operate/services.md: its monitoring writes lines epoch_s,requests_per_s",
    )


_BUCKET = 30
_READS = 10
_HIDES_LIMITS = frozenset({"accounts", "all", "usage", "users"})


@check("job records")
def job_records(site: Site) -> CheckResult:
    """A job that ends between two looks must still be listed at the second."""
    age_s, poll_s = site.controller.whole("MinJobAge"), site.config.daemon.poll_s
    told = f"ended jobs are listed for {age_s} s (MinJobAge), a look comes every {poll_s:g} s"
    advice = f"in slurm.conf: MinJobAge={max(300, round(4 * poll_s))}; or lower daemon.poll_s"
    if age_s <= poll_s:
        return error(f"{told}: ends of jobs are missed", advice)
    if age_s < 2 * poll_s:
        return warning(f"{told}: one failed look misses ends of jobs", advice)
    return ok(told)


@check("call limit")
def call_limit(site: Site) -> CheckResult:
    """Slurm's limit of calls makes an Operator's commands wait."""
    controller = site.controller
    if not controller.series.limits_calls:
        return ok("this release does not limit users' calls")
    if "rl_enable" not in controller.options("SlurmctldParameters"):
        return ok("users' calls are not limited (no rl_enable)")
    if is_exempt(site):
        return ok("users' calls are limited, dlschedd's are not")
    config = site.config
    bucket = controller.option("SlurmctldParameters", "rl_bucket_size", _BUCKET)
    together = max(config.writes.rate_per_s * config.daemon.poll_s, config.writes.burst)
    most = max(1, bucket - _READS)
    told = f"up to {together:g} writes at once, {bucket} calls are allowed (rl_enable)"
    if together <= most:
        return ok(told)
    rate = math.floor(most / config.daemon.poll_s * 100) / 100
    wider = math.ceil(together) + _READS
    line = controller.line_with("SlurmctldParameters", "rl_bucket_size", wider)
    return warning(
        f"{told}: dlschedd's commands are made to wait",
        f"in slurm_dl.yaml: writes: {{rate_per_s: {max(rate, 0.01):g}, burst: {most}}}; or in "
        f"slurm.conf: {line}",
    )


@check("accounting")
def accounting(site: Site) -> CheckResult:
    """Slurm's accounting must know GPUs, or the past cannot be counted from it."""
    if not site.controller.has_accounting:
        return ok("no slurmdbd: no fair-share, and no history to count from")
    tracked = site.controller.text("AccountingStorageTRES").lower().split(",")
    if "gres/gpu" in tracked:
        return ok("slurmdbd, which knows GPUs (gres/gpu)")
    return warning(
        "AccountingStorageTRES has no gres/gpu: sacct does not know who held how many GPUs",
        f"in slurm.conf: {site.controller.line_with('AccountingStorageTRES', 'gres/gpu')}; then "
        "restart slurmctld",
    )


@check("enforcement")
def enforcement(site: Site) -> CheckResult:
    """Limits have to be seen; in native mode everything hangs on who may use the QOS."""
    if not site.controller.has_accounting:
        return ok("no slurmdbd: nothing to enforce")
    enforced = site.controller.text("AccountingStorageEnforce")
    told = f"AccountingStorageEnforce={enforced or 'none'}"
    words = in_force(frozenset(enforced.lower().split(",")))
    hidden = sorted(_HIDES_LIMITS.intersection(site.controller.options("PrivateData")))
    limited = words & {"limits", "qos", "safe"} and not is_exempt(site)
    if hidden and limited and site.admin_level.lower() not in ENOUGH:
        return warning(
            f"{told}, and {site.account.name} may not see the limits (PrivateData={hidden[0]}): "
            "hand-overs begin one at a time for each user, account and QOS",
            f"see rights: {to_operator(site.account.name, site.admin_level)}",
        )
    if "qos" in words:
        return ok(told)
    if site.config.preemption.mode == "native":
        return warning(
            f"{told}: whoever likes may submit to QOS {site.config.preemption.qos}",
            "in slurm.conf: AccountingStorageEnforce=associations,limits,qos; then restart "
            "slurmctld",
        )
    return ok(told)

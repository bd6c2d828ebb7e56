"""All checks, in the order in which they are shown, and the loop over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slurm_dl.doctor import (
    installation_checks,
    order_checks,
    placement_checks,
    preemption_checks,
    slurm_checks,
)
from slurm_dl.doctor.check_result import CannotTellError, CheckResult, Severity
from slurm_dl.doctor.findings import Findings


@dataclass(frozen=True, slots=True)
class Check:
    """One question and who answers it.

    Attributes:
        name: What it is about; unique, and stable for programs.
        run: Its answer; may raise `CannotTellError` and nothing else.
    """

    name: str
    run: Callable[[Findings], CheckResult]


CHECKS = (
    Check("configuration", installation_checks.configuration),
    Check("slurm", slurm_checks.reachable),
    Check("release", slurm_checks.release),
    Check("reader", slurm_checks.reader),
    Check("partitions", slurm_checks.partitions),
    Check("rights", slurm_checks.rights),
    Check("private data", slurm_checks.private_data),
    Check("clock", slurm_checks.clock),
    Check("priority plugin", order_checks.priority_plugin),
    Check("site factor", order_checks.site_factor_plugin),
    Check("priority weights", order_checks.priority_weights),
    Check("priority flags", order_checks.priority_flags),
    Check("partition tiers", order_checks.partition_tiers),
    Check("gpus", order_checks.gpus),
    Check("backfill depth", order_checks.backfill_depth),
    Check("backfill window", order_checks.backfill_window),
    Check("backfill passes", order_checks.backfill_passes),
    Check("preemption", preemption_checks.who_preempts),
    Check("requeue", preemption_checks.job_requeue),
    Check("requeue hold", preemption_checks.requeue_hold),
    Check("kill wait", preemption_checks.kill_wait),
    Check("grace", preemption_checks.default_grace),
    Check("node sharing", preemption_checks.sharing),
    Check("placement", placement_checks.placement),
    Check("fragments", placement_checks.fragments),
    Check("node weights", placement_checks.node_weights),
    Check("profiles", placement_checks.profiles),
    Check("job records", slurm_checks.job_records),
    Check("call limit", slurm_checks.call_limit),
    Check("accounting", slurm_checks.accounting),
    Check("enforcement", slurm_checks.enforcement),
    Check("directories", installation_checks.directories),
    Check("state disk", installation_checks.state_disk),
    Check("templates", installation_checks.templates),
    Check("daemon", installation_checks.daemon),
    Check("cycles", installation_checks.cycles),
)
"""Every check there is."""


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """One check and what it said."""

    name: str
    verdict: CheckResult


def examine(found: Findings) -> tuple[CheckOutcome, ...]:
    """What every check says of *found*; one that cannot be made says so."""
    return tuple(CheckOutcome(check.name, _verdict(check, found)) for check in CHECKS)


def _verdict(check: Check, found: Findings) -> CheckResult:
    try:
        return check.run(found)
    except CannotTellError as err:
        return CheckResult(level=Severity.SKIPPED, found=str(err))

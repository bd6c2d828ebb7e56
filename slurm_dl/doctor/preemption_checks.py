"""Whether jobs can give way: what a requeue costs, and who else preempts."""

from __future__ import annotations

from slurm_dl.config import engine_settings
from slurm_dl.daemon.assembly import LEDGER_FILE
from slurm_dl.doctor.controller_config import PartitionRecord
from slurm_dl.doctor.site import CheckResult, Site, check, error, ok, warning
from slurm_dl.ledger.sqlite.reader import LedgerReader
from slurm_dl.model.contract import DEFAULT_GRACE_S
from slurm_dl.slurm.controller import requeue_hold as hold_of
from slurm_dl.slurm.preflight import native_gaps
from slurm_dl.slurm.requeue_facts import (
    JOB_REQUEUE_OFF,
    LONG_HOLD_S,
    NO_PREEMPTION,
    hold_told,
)
from slurm_dl.text import escaped

_GOOD_HOLD_S = 30
_KILL_WAIT_S = 30  # Slurm's default
_EXPEDITED = (25, 11)  # First release with sbatch --requeue=expedite, by its release notes


_MOST_NAMED = 10


@check("contracts")
def contracts(site: Site) -> CheckResult:
    """Users who cannot opt in wait longer where GPU time that nobody can take back counts."""
    limits = site.config.preemption
    if limits.commitment == "ignored" or not limits.enabled:
        return ok("time limits of jobs without a contract do not count as service")
    ledger = site.config.paths.state_dir / LEDGER_FILE
    if not ledger.exists():
        return ok("there is no ledger yet, so it is not known which users opt in")
    reader = LedgerReader(ledger)
    broke = ""
    if broken := reader.broken_contracts():
        jobs = ", ".join(str(body.get("job_id")) for body in list(broken.values())[:_MOST_NAMED])
        broke = f"Requeue=0 was set for jobs that ran with a contract: {jobs}; "
    exempt = {name.lower() for name in limits.exempt_accounts}
    use = reader.contract_use(site.config.manage.partitions)
    counted = [row for row in use if row[1] not in exempt]
    users = {user for user, *_ in counted}
    can = {user for user, *_, opted_in in counted if opted_in}
    cannot = [row for row in counted if row[0] not in can]
    told = f"{broke}each of {len(users)} users with GPU jobs in the last week had a contract"
    if not cannot:
        return warning(told, "see docs/operate/incentives.md") if broke else ok(told)
    named = ", ".join(f"{escaped(user)} ({jobs} jobs)" for user, _, jobs, _ in cannot[:_MOST_NAMED])
    accounts = dict.fromkeys(escaped(account) for _, account, *_ in cannot if account)
    names = ", ".join([*limits.exempt_accounts, *accounts])
    return warning(
        f"{broke}{len(users - can)} of {len(users)} users had no GPU job with a contract in the "
        f"last week: {named}; under policies by attained service their jobs count their GPUs times "
        "their time limit, and wait longer",
        f"in slurm_dl.yaml: preemption: {{exempt_accounts: [{names}]}}; or help them to save, see "
        "docs/use/preemption.md"
        if accounts
        else "see docs/use/preemption.md: help them to save",
    )


@check("preemption")
def who_preempts(site: Site) -> CheckResult:
    """Who takes GPUs back: nobody, dlschedd or Slurm; and whether that one can."""
    preemption = site.config.preemption
    if preemption.mode == "native":
        lacks, remark = native_gaps(
            site.slurm,
            site.controller.values,
            qos=preemption.qos.lower(),
            settings=engine_settings.settings_of(site.config),
            poll_s=site.config.daemon.poll_s,
        )
        advice = "see 'Native preemption' in the admin guide"
        if lacks:
            return error("; ".join(lacks), advice)
        if remark:
            return warning(remark, advice)
        return ok(f"Slurm preempts inside QOS {preemption.qos} and is set up for it")
    if not preemption.enabled:
        return ok("nobody is preempted (preemption.enabled is false)")
    return _external(site)


def _external(site: Site) -> CheckResult:
    controller = site.controller
    plugin = controller.text("PreemptType").lower()
    modes = controller.text("PreemptMode")
    if "gang" in modes.lower().split(","):
        line = controller.line_without("PreemptMode", "gang", "suspend", none="OFF")
        return warning(
            f"PreemptMode={modes}: suspended jobs keep their GPUs",
            f"in slurm.conf: {line}; then restart slurmctld",
        )
    # A partition's own mode counts for one plug-in only.
    by_partition = plugin.endswith("partition_prio")
    exempt = {"OFF"} if by_partition else frozenset()
    exposed = [p.name for p in site.managed if p.text("PreemptMode").upper() not in exempt]
    if plugin in NO_PREEMPTION or not exposed:
        return ok("dlschedd preempts, Slurm does not")
    advice = (
        f"in slurm.conf, partitions {', '.join(exposed)}: PreemptMode=OFF"
        if by_partition
        else "see that no QOS of their jobs may preempt another of theirs (sacctmgr show qos "
        "format=Name,Preempt), or set preemption.mode: native"
    )
    return warning(
        f"PreemptType={plugin}: in {', '.join(exposed)} Slurm may stop jobs that dlschedd "
        "has chosen to keep",
        advice,
    )


@check("requeue")
def job_requeue(site: Site) -> CheckResult:
    """Only jobs that may be requeued can give way."""
    if site.controller.whole("JobRequeue") != 0:
        told = "JobRequeue=1: batch jobs can be requeued"
        now = site.controller.release
        if (now.major, now.minor) >= _EXPEDITED:
            told += (
                "; one submitted with --requeue=expedite goes before all others after a failed "
                "node, and keeps its nodes: that is Slurm's, and no order of dlschedd changes it"
            )
        return ok(told)
    return warning(JOB_REQUEUE_OFF, "in slurm.conf: JobRequeue=1; unless that is meant")


@check("requeue hold")
def requeue_hold(site: Site) -> CheckResult:
    """Slurm keeps a requeued job from starting for a while; two minutes unless told otherwise."""
    hold_s, setting = hold_of(site.controller.values)
    told = hold_told(hold_s, setting)
    kill_s = site.controller.whole("KillWait")
    key, _, word = setting.partition("=")
    line = site.controller.line_with(key, word, max(_GOOD_HOLD_S, kill_s + 1))
    if hold_s <= kill_s:
        return warning(
            f"{told}, its old run has up to {kill_s} s to end (KillWait): they may meet",
            f"in slurm.conf: {line}; then restart slurmctld",
        )
    if hold_s < max(LONG_HOLD_S, kill_s + _GOOD_HOLD_S):
        return ok(told)
    return warning(
        f"{told}: each preempted job loses that on top of its restart",
        f"in slurm.conf: {line}; if jobs are gone from their nodes by then",
    )


@check("kill wait")
def kill_wait(site: Site) -> CheckResult:
    """A requeue ends what still runs by SIGTERM and, KillWait later, SIGKILL."""
    kill_s = site.controller.whole("KillWait")
    told = f"what still runs at a requeue has {kill_s} s from SIGTERM to SIGKILL (KillWait)"
    if kill_s >= _KILL_WAIT_S:
        return ok(told)
    return warning(
        f"{told}: short for a job that writes files when it is told to end",
        f"in slurm.conf: KillWait={_KILL_WAIT_S}; unless that is meant",
    )


@check("grace")
def default_grace(site: Site) -> CheckResult:
    """Jobs that ask for no grace of their own should be preemptible."""
    note = site.config.preemption.grace_note()
    if not note:
        return ok(f"dlsubmit's default grace of {DEFAULT_GRACE_S:.0f} s is within max_grace_s")
    return warning(
        note,
        f"in slurm_dl.yaml: preemption: {{max_grace_s: {DEFAULT_GRACE_S:.0f}}}; unless it is meant",
    )


@check("node sharing")
def sharing(site: Site) -> CheckResult:
    """How a partition gives out its nodes."""
    notes = [(p.name, *note) for p in site.managed for note in _notes(p)]
    if notes:
        lines = [f"in slurm.conf, partitions {name}: {line}" for name, _, line in notes]
        return warning(
            "; ".join(told for _, told, _ in notes), f"{'; '.join(lines)}; unless it is meant"
        )
    graces = [p for p in site.managed if p.text("GraceTime") not in {"", "0"}]
    if graces and site.config.preemption.mode == "external":
        told = ", ".join(f"{p.name} {p.text('GraceTime')} s" for p in graces)
        return ok(f"GraceTime ({told}) is Slurm's; preemption.max_grace_s is what counts here")
    return ok("nodes of managed partitions are shared by GPU, and jobs do not share GPUs")


def _notes(partition: PartitionRecord) -> list[tuple[str, str]]:
    """What is odd about it, each with what its line should say."""
    share = partition.text("OverSubscribe").upper()
    notes = []
    if share.startswith("FORCE"):
        told = f"OverSubscribe={share} in {partition.name}: jobs share their CPUs"
        notes.append((told, "OverSubscribe=NO"))
    # 26.05 has a key of its own for it.
    own_key = partition.text("Exclusive").upper() in {"NODE", "TOPO"}
    if share == "EXCLUSIVE" or own_key:
        line = "Exclusive=NO" if own_key else "OverSubscribe=NO"
        told = f"{partition.name} gives out whole nodes, whatever GPUs a job asks for"
        notes.append((told, line))
    if partition.text("LLN").upper() == "YES":
        told = f"LLN=YES in {partition.name} spreads small jobs: big ones find no room"
        notes.append((told, "LLN=NO"))
    return notes

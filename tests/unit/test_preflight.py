"""A Slurm that is not set up to preempt by itself is refused, with the line that is missing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import pytest

from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.slurm.preflight import check_external, check_native, to_end_within
from slurm_dl.slurm.read.conditions import CONDITION_ARGUMENTS
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.slurm.write.release_all import release_all

# As 'scontrol show config' printed them on clusters that preempt; lines that are not read left out.
COMMON = """\
Configuration data as of 2026-11-20T21:21:00
AccountingStorageType   = accounting_storage/slurmdbd
AuthInfo                = cred_expire=5
PreemptMode             = REQUEUE
PreemptType             = preempt/qos
PreemptExemptTime       = 00:00:05
PrioritySiteFactorPlugin = (null)
PriorityFlags           =
PriorityType            = priority/multifactor
PriorityWeightAge       = 1000
PriorityWeightAssoc     = 0
PriorityWeightFairShare = 10000
PriorityWeightJobSize   = 0
PriorityWeightPartition = 0
PriorityWeightQOS       = 1000
PriorityWeightTRES      = (null)
"""
SLURM_22_05 = f"""{COMMON}\
SlurmctldParameters     = preempt_send_user_signal
SLURM_VERSION           = 22.05.8
"""
SLURM_24_11 = f"""{COMMON}\
PreemptParameters       = send_user_signal
SlurmctldParameters     = (null)
SLURM_VERSION           = 24.11.5
"""
SLURM_26_05 = SLURM_24_11.replace("24.11.5", "26.05.5")
QOS = "normal|cluster|00:00:00|\ndl|within,requeue|00:01:00|00:00:10\n"

SETTINGS = Settings(
    partitions=frozenset({"gpu"}), preemption=Preemption(min_quantum_s=10, max_grace_s=60)
)
POLL_S = 2.0


class Site(Slurm):
    """A Slurm that answers what it is told to."""

    def __init__(self, config: str = SLURM_22_05, qos: str | None = QOS) -> None:
        self.calls = Counter()
        self.config = config
        self.qos = qos
        self.queue: Sequence[str] = ()
        self.done: list[str] = []

    @property
    def slurm_conf(self) -> str:
        """There is none that could be read."""
        return "/nonexistent"

    def run(self, tool: str, *args: str, **_: float) -> str:
        """Slurm's answer."""
        if tool == "sacctmgr":
            if self.qos is None:
                msg = "sacctmgr is not installed"
                raise ClusterError(msg)
            return self.qos
        if args[:2] == ("show", "config"):
            return self.config
        if args == CONDITION_ARGUMENTS:
            return ""
        if tool == "squeue":
            nonce = args[-1].rpartition(":")[2].removesuffix("r")
            rows = [job.split() for job in self.queue]
            width = args[-1].count(",") + 1
            full = [row + [""] * (width - len(row)) for row in rows]
            return "".join(f"{nonce}f".join(row) + f"{nonce}r\n" for row in full)
        if args[0] == "update":
            self.done.append(" ".join(args[1:]))
        return ""


def check(config: str = SLURM_22_05, qos: str | None = QOS, **more: object) -> str:
    """What the check says."""
    values = {"qos": "dl", "settings": SETTINGS, "poll_s": POLL_S, **more}
    return check_native(Site(config, qos), **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("config", [SLURM_22_05, SLURM_24_11, SLURM_26_05])
def test_what_real_clusters_said_is_enough(config: str) -> None:
    """Each of them did preempt by SiteFactor."""
    assert check(config) == ""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("preempt/qos", "(null)", "needs the line PreemptType=preempt/qos"),
        ("= REQUEUE", "= OFF", "needs the line PreemptMode=REQUEUE"),
        (
            "preempt_send_user_signal",
            "(null)",
            "preempt_send_user_signal in slurm.conf's line SlurmctldParameters=",
        ),
        ("priority/multifactor", "priority/basic", "PriorityType=priority/multifactor"),
        ("accounting_storage/slurmdbd", "accounting_storage/none", "accounting_storage/slurmdbd"),
        ("PriorityFlags           =", "PriorityFlags           = INCR_ONLY", "able to fall"),
        ("Plugin = (null)", "Plugin = site_factor/ours", "overwrite our SiteFactors"),
        ("= REQUEUE", "= WITHIN,REQUEUE", "preempts inside every QOS"),
        ("= 10000\n", "= 5000000\n", "more than twice"),
        ("WeightTRES      = (null)", "WeightTRES      = CPU=1000,GRES/gpu=5000000", "(5013000)"),
        ("cred_expire=5", "cred_expire=1", "start after 2 s"),
    ],
)
def test_each_thing_that_is_missing_is_named(old: str, new: str, said: str) -> None:
    """With the line to add."""
    config = SLURM_22_05.replace(old, new)
    assert config != SLURM_22_05

    with pytest.raises(ConfigError, match=re.escape(said)):
        check(config)


def test_the_signal_s_place_is_that_of_the_release() -> None:
    """Since 23.02 it is PreemptParameters; each place of the other release is not enough."""
    with pytest.raises(ConfigError, match=r"send_user_signal in slurm.conf's line PreemptParam"):
        check(SLURM_24_11.replace("= send_user_signal", "= (null)"))
    with pytest.raises(ConfigError, match="PreemptParameters="):
        check(SLURM_22_05.replace("22.05.8", "23.02.2"))


def test_requeue_delay_wins_where_it_exists() -> None:
    """Since 25.11 it says how long a requeued job waits; before, it is an unknown word."""
    short = "SchedulerParameters     = bf_interval=5,requeue_delay=0\n"

    assert check(SLURM_24_11 + short) == ""
    with pytest.raises(ConfigError, match=r"after 1 s \(SchedulerParameters=requeue_delay"):
        check(SLURM_26_05 + short)


@pytest.mark.parametrize(
    ("qos", "said"),
    [
        ("normal|cluster|00:00:00|\n", "no QOS dl: sacctmgr add qos dl PreemptMode=REQUEUE Grace"),
        ("dl|cancel,within|00:01:00|00:00:10\n", "set PreemptMode=REQUEUE"),
        ("dl|within,requeue|00:00:20|00:00:10\n", "set GraceTime=60"),
        ("dl|within,requeue|00:01:00|00:00:05\n", "set PreemptExemptTime=0:10"),
        ("dl|within,requeue|00:01:00|\n", "set PreemptExemptTime=0:10"),
    ],
)
def test_the_qos_is_looked_at(qos: str, said: str) -> None:
    """With the command that mends it. An empty exempt time is that of slurm.conf, here 5 s."""
    with pytest.raises(ConfigError, match=re.escape(said)):
        check(qos=qos)


def test_all_that_is_missing_is_said_at_once() -> None:
    """One line each."""
    with pytest.raises(ConfigError) as caught:
        check(SLURM_22_05.replace("= REQUEUE", "= OFF").replace("preempt/qos", "(null)"), "")

    assert len(str(caught.value).splitlines()) == 3


def test_the_exempt_time_covers_the_time_until_a_run_is_seen() -> None:
    """A run that has not been seen yet has the priority of a waiting job."""
    with pytest.raises(ConfigError, match="PreemptExemptTime=1:00"):
        check(SLURM_22_05.replace("cred_expire=5", "x"), poll_s=30.0)


def test_what_cannot_be_looked_up_is_said_and_no_reason_to_refuse() -> None:
    """Without sacctmgr, or with slurmdbd down."""
    assert check(qos=None) == "QOS dl is not checked: sacctmgr is not installed"


def test_without_within_it_may_start_and_says_what_is_left_to_do() -> None:
    """The order of switching it on: SiteFactors first."""
    assert "dl set PreemptMode=REQUEUE,WITHIN" in check(qos="dl|requeue|00:01:00|00:00:10\n")


@pytest.mark.parametrize("weight", ["Assoc     = 0", "Partition = 0", "TRES      = (null)"])
def test_factors_without_an_upper_bound_are_refused(weight: str) -> None:
    """A partition's PriorityJobFactor of 10000 with a weight of 1000 is more than half a band."""
    raw = SLURM_22_05.replace("Flags           =", "Flags           = NO_NORMAL_ALL")
    weighted = weight.replace("= 0", "= 1000").replace("(null)", "gres/gpu=1000")

    assert check(raw) == ""
    with pytest.raises(ConfigError, match="not normalised"):
        check(raw.replace(weight, weighted))


@pytest.mark.parametrize(
    ("config", "qos", "may"),
    [
        (SLURM_22_05, QOS, True),
        (SLURM_22_05, QOS.replace("within,", ""), False),
        (SLURM_22_05.replace("preempt/qos", "(null)"), None, False),
        (SLURM_22_05.replace("REQUEUE", "WITHIN,REQUEUE"), "dl|cluster|00:00:00|\n", True),
        (SLURM_22_05.replace("REQUEUE", "WITHIN,REQUEUE"), "dl|requeue|00:00:00|\n", True),
    ],
)
def test_whether_slurm_may_preempt_now(config: str, qos: str | None, *, may: bool) -> None:
    """It takes the plugin, and WITHIN in the QOS or in slurm.conf."""
    assert bool(to_end_within(Site(config, qos), "dl")) is may


def test_what_ends_it_is_where_the_word_stands() -> None:
    """Changing the QOS is of no use where slurm.conf says it for all."""
    everywhere = Site(SLURM_22_05.replace("REQUEUE", "WITHIN,REQUEUE"))

    assert "in slurm.conf" in to_end_within(everywhere, "dl")
    assert to_end_within(Site(), "dl") == "sacctmgr modify qos dl set PreemptMode=REQUEUE"


def test_external_is_refused_while_slurm_still_preempts() -> None:
    """Running jobs would lose the half band that keeps equals from displacing each other."""
    with pytest.raises(ConfigError, match="modify qos dl set PreemptMode=REQUEUE"):
        check_external(Site(), "dl")
    assert check_external(Site(qos=QOS.replace("within,", "")), "dl") == ""
    assert "sacctmgr is not installed" in check_external(Site(qos=None), "dl")


QUEUE = (
    "1 1 RUNNING gpu (null) dl 100",
    "2 2 PENDING gpu (null) dl 100",
    "3 3 RUNNING gpu (null) normal 100",
)


def released(site: Site) -> str:
    """What release-all ends with."""
    site.queue = QUEUE
    try:
        list(release_all(site, ["gpu"], within="dl"))
    except ClusterError as err:
        return str(err)
    return ""


def test_release_all_lets_nobody_be_stopped() -> None:
    """As long as Slurm preempts inside the QOS its running jobs keep their SiteFactor."""
    site = Site()

    said = released(site)

    assert site.done == ["JobId=2 SiteFactor=0", "JobId=3 SiteFactor=0"]
    assert "1 running jobs of QOS dl keep" in said
    assert "sacctmgr modify qos dl set PreemptMode=REQUEUE" in said


@pytest.mark.parametrize(
    "site",
    [
        Site(qos=QOS.replace("within,", "")),
        Site(SLURM_22_05.replace("preempt/qos", "(null)"), None),
    ],
)
def test_release_all_resets_running_jobs_last(site: Site) -> None:
    """Where Slurm does not preempt any more, or never did."""
    assert released(site) == ""
    assert site.done == [f"JobId={job} SiteFactor=0" for job in (2, 1, 3)]


def test_release_all_minds_the_word_in_slurm_conf() -> None:
    """It is enough there, whatever PreemptMode the QOS has."""
    site = Site(SLURM_22_05.replace("REQUEUE", "WITHIN,REQUEUE"), QOS.replace("within,", ""))

    assert "take WITHIN out of PreemptMode in slurm.conf, and run this again" in released(site)
    assert "JobId=1 SiteFactor=0" not in site.done


def test_release_all_that_cannot_find_out_keeps_them() -> None:
    """Unknown is not no."""
    site = Site(qos=None)

    assert "cannot be found out" in released(site)
    assert "JobId=1 SiteFactor=0" not in site.done

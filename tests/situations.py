"""Small clusters with a full queue on which policies differ, as snapshots and on a real Slurm.

Two nodes of four v100 and two of four k80, all held by the two jobs that run. Who waits has a past
of its own, an account, a model with speeds, progress and perhaps a deadline.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pasts import Known, Over, past_of

from slurm_dl.config.parameters import POLICY
from slurm_dl.daemon.enrich import Enricher
from slurm_dl.engine.decide import decide
from slurm_dl.engine.settings import Deadlines, Preemption, Settings
from slurm_dl.estimates.training_speed import SitePriors
from slurm_dl.model.completed_jobs import Past
from slurm_dl.model.contract import Claim
from slurm_dl.model.ids import JobId
from slurm_dl.model.profile import Profile, Speed
from slurm_dl.model.shape import Shape
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.policies.base import Policy
from slurm_dl.testing.snapshot_builder import NOW_S, running, snapshot, waiting

TYPES: Final = ("v100", "k80")
NODES: Final = 2
"""Of each type."""
GPUS: Final = 4
CPUS: Final = 64
MEM_MB: Final = 256_000
SPEED_ON_V100: Final = {"fast": 4.0, "even": 1.2}
"""By model, where it is 1 on k80."""
AGE_S: Final = 50_000.0
"""Since the submission of the first job; each later one came a minute after it."""
ACCOUNTS: Final = ("account0", "account1", "account2")
DEADLINES: Final[Mapping[str, Any]] = {"share": 1.0, "account_share": 1.0}
USER: Final = "root"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A job of a situation.

    Attributes:
        job: Its number; a lower one was submitted first.
        gpus: GPUs in all, split evenly over *nodes*.
        had_s: Seconds that it ran before; 0: it never ran.
        due_s: Seconds from now to its deadline; None: it has none.
    """

    job: int
    gpus: int
    limit_s: int
    nodes: int = 1
    cpus: int = 1
    account: str = ACCOUNTS[0]
    name: str = "bert"
    qos: str = "normal"
    model: str = "even"
    had_s: int = 0
    progress: float | None = None
    due_s: int | None = None

    @property
    def claim(self) -> dict[str, Any]:
        """Its metadata, but for the deadline."""
        told = {"v": 1, "model": self.model, "progress": self.progress}
        return {key: value for key, value in told.items() if value is not None}

    def comment(self, now_s: float) -> str:
        """Its metadata as Slurm keeps them, in a job's comment."""
        due = {} if self.due_s is None else {"due": int(now_s + self.due_s)}
        return json.dumps({"slurm_dl": {**self.claim, **due}})

    @property
    def first_submit_s(self) -> float:
        """Seconds before now."""
        return AGE_S - 60.0 * self.job

    @property
    def waits_s(self) -> float:
        """Seconds since its last run, which began at half of the time, or since it came."""
        return AGE_S / 2 - self.had_s if self.had_s else self.first_submit_s


RUNNING: Final = (1, 2)
"""The jobs that run, on all GPUs of a type each."""


def profiles() -> dict[str, Profile]:
    """The two models."""
    return {
        model: Profile(
            name=model,
            speeds=tuple(
                Speed(shape=Shape(1, 1), gpu_type=kind, steps_per_s=speed, origin="measured")
                for kind, speed in (("v100", v100), ("k80", 1.0))
            ),
        )
        for model, v100 in SPEED_ON_V100.items()
    }


def observed(queue: Sequence[Queued], past: Past, *, later_s: float = 0.0) -> Snapshot:
    """The situation as the daemon sees it, *later_s* seconds after its two jobs have started."""
    rows, claims, texts = [], {}, {}
    memory: dict[str, dict[int, float]] = {}
    for one in queue:
        runs = one.job in RUNNING
        make: Any = running if runs else waiting
        ran_s = later_s + 5.0
        more = {"ran_s": ran_s} if runs else {}
        rows.append(
            make(
                one.job, one.gpus, limit_s=one.limit_s, n_nodes=one.nodes, uid=0,
                cpus=one.cpus * one.nodes, mem_mb=1000, **more,
                submit_s=NOW_S - later_s - 60 + one.job,
            )
        )  # fmt: skip
        ran_s = one.had_s + (ran_s if runs else 0.0)
        told: dict[str, float] = {
            "ran_s": ran_s,
            "attained_gpu_s": ran_s * one.gpus,
            "first_submit_s": NOW_S - later_s - one.first_submit_s,
            "waiting_since_s": NOW_S - later_s - one.waits_s,
        }
        if ran_s:
            told["first_run_s"] = NOW_S - later_s - AGE_S / 2
        for column, value in told.items():
            memory.setdefault(column, {})[one.job] = value
        due_s = None if one.due_s is None else int(NOW_S - later_s + one.due_s)
        claims[JobId(one.job)] = Claim(model=one.model, progress=one.progress, due_s=due_s)
        texts[JobId(one.job)] = JobText(
            label=str(one.job), name=one.name, user=USER, account=one.account, qos=one.qos
        )
    nodes = [(GPUS, kind) for kind in range(len(TYPES)) for _ in range(NODES)]
    seen = {"claims": claims, "texts": texts}
    return snapshot(rows, nodes=nodes, types=TYPES, memory=memory, seen=seen, past=past)


def made(policy: str, parameters: Mapping[str, Any] | None = None) -> Policy:
    """The policy of this name."""
    whole, mistakes = POLICY.complete(policy, dict(parameters or {}))
    assert not mistakes
    return POLICY.make(policy, whole)


SETTINGS: Final = Settings(
    partitions=frozenset({"gpu"}), preemption=Preemption(commitment="ignored")
)


def order_of(
    queue: Sequence[Queued], overs: Sequence[Over], policy: Policy, *, later_s: float = 0.0
) -> str:
    """The numbers of the waiting jobs, first the one that is to start first."""
    past = past_of(overs)
    known: Any = Known(past)
    enrich = Enricher(
        history=known, policy=policy, profiles=profiles(), site=SitePriors(),
        deadlines=Deadlines(**DEADLINES),
    )  # fmt: skip
    snap = enrich(observed(queue, past, later_s=later_s))
    plan = decide(snap, policy, SETTINGS)
    waits = [row for row, job in enumerate(snap.jobs.job_id.tolist()) if job not in RUNNING]
    return "".join(str(snap.jobs.job_id[row]) for row in sorted(waits, key=lambda r: plan.rank[r]))


MEAN_S: Final = {"bert": 200, "gpt": 9_000, "lstm": 1_500, "resnet": 20_000, "vgg": 600}
"""Run time of past jobs by name: no limit of a waiting job tells it."""


def overs(now_s: float) -> list[Over]:
    """Sixty jobs that are over by *now_s*, of every name, size and account."""
    names = sorted(MEAN_S)
    return [
        Over(
            USER,
            names[i % len(names)],
            float((1, 2, 4, 8)[i % 4]),
            float(round(MEAN_S[names[i % len(names)]] * (1 + 0.01 * (i % 7)))),
            now_s - 3600 - 600 * i,
            ACCOUNTS[i * i % 3],
        )
        for i in range(60)
    ]


_TABLE: Final = """
situation job gpus nodes cpus limit_s account name qos model had_s progress due_s
full_1    1 8 2  4 36000 account1 lstm   normal fast  848 0.74 -
full_1    2 8 2  4 36000 account2 lstm   normal even 6700 0.84 -
full_1    3 2 1 24 14400 account0 gpt    normal even 4410 0.78 9031
full_1    4 4 1  4   600 account0 bert   normal fast    0    - 19946
full_1    5 8 2 24  1800 account1 vgg    normal even    0 0.16 -
full_1    6 4 1  4  1800 account0 lstm   high   even    0 0.54 12291
full_1    7 4 1  4 14400 account0 gpt    normal even 3784 0.76 17653
full_1    8 8 2  1   600 account1 gpt    normal even 4802 0.09 -
full_2    1 8 2  4 14400 account2 resnet normal fast 6473    - -
full_2    2 8 2  4 14400 account1 bert   normal even 6979    - -
full_2    3 8 2  4 14400 account0 vgg    high   even 3923    - -
full_2    4 2 1  1  1800 account1 resnet high   even 2841    - -
full_2    5 1 1  4  3600 account1 vgg    high   fast 5243 0.08 -
full_2    6 8 2 24 36000 account2 resnet high   even 4557 0.75 -
full_2    7 2 1  1 36000 account0 vgg    high   fast    0    - -
full_2    8 2 1 24 14400 account2 resnet high   fast    0 0.09 2421
full_3    1 8 2  4 14400 account2 lstm   normal even 4454 0.87 -
full_3    2 8 2  4 14400 account0 vgg    normal fast 7790 0.20 -
full_3    3 2 1 24 36000 account1 vgg    normal even    0    - 14574
full_3    4 2 1  1 36000 account0 bert   normal fast 3360 0.69 -
full_3    5 8 2 24   600 account1 vgg    normal even    0 0.30 -
full_3    6 2 1 24 36000 account0 vgg    normal fast 3933    - -
full_3    7 1 1 24  1800 account0 bert   normal even  271 0.75 18966
full_3    8 2 1  4  3600 account0 resnet normal fast    0 0.27 4284
room      1 8 2  4 36000 account1 gpt    normal fast 2534 0.49 -
room      2 4 1  4 14400 account0 bert   normal fast 6611    - -
room      3 8 2  4  3600 account2 bert   normal fast    0    - 11608
room      4 2 1  1 14400 account0 bert   normal even    0    - -
room      5 8 2  1   600 account0 resnet normal fast    0    - 10736
room      6 1 1  1 14400 account0 gpt    high   fast 5692 0.31 -
room      7 4 1 24   600 account2 resnet high   fast 4647    - -
room      8 2 1  1  1800 account1 bert   high   even 5318    - -
"""


def _situations() -> dict[str, tuple[Queued, ...]]:
    header, *lines = _TABLE.strip().splitlines()
    kinds: dict[str, Callable[[str], Any]] = dict.fromkeys(header.split(), int)
    kinds |= dict.fromkeys(("situation", "account", "name", "qos", "model"), str)
    kinds["progress"] = float
    found: dict[str, tuple[Queued, ...]] = {}
    for line in lines:
        cells = zip(kinds.items(), line.split(), strict=True)
        told = {key: kind(cell) for (key, kind), cell in cells if cell != "-"}
        situation = told.pop("situation")
        found[situation] = (*found.get(situation, ()), Queued(**told))
    return found


SITUATIONS: Final = _situations()
"""All but ``room`` have no free GPU."""

ROWS: Final[Mapping[str, tuple[str, str, str, str]]] = {
    "allox": ("347658", "345786", "354786", "374568"),
    "astraea_ltgf": ("345678", "634875", "436785", "483756"),
    "carbyne": ("465738", "746835", "735846", "483576"),
    "chronus": ("437568", "476538", "734586", "784356"),
    "conservative_backfill": ("345678", "345678", "345678", "436578"),
    "discrete_gittins": ("456378", "784563", "735846", "435687"),
    "discrete_las": ("456378", "784536", "357846", "435687"),
    "drf": ("346578", "374658", "354678", "483576"),
    "easy_backfill": ("345678", "345678", "345678", "436578"),
    "edf": ("367458", "874536", "837546", "453687"),
    "elas": ("345678", "784635", "345786", "435687"),
    "fewest_gpus": ("346758", "547836", "734685", "648735"),
    "fifo": ("345678", "345678", "345678", "345678"),
    "fifo_skip": ("345678", "345678", "345678", "483567"),
    "gandiva_fair": ("346758", "453768", "354678", "843756"),
    "gavel_cost": ("346758", "457836", "467835", "468735"),
    "gavel_cost_slo": ("347658", "457836", "467835", "468753"),
    "gavel_fifo": ("345678", "345678", "345678", "463578"),
    "gavel_finish_time": ("456387", "457683", "475368", "467835"),
    "gavel_gandiva": ("346758", "457836", "346785", "468735"),
    "gavel_hierarchical": ("367584", "457836", "374685", "867435"),
    "gavel_isolated": ("346758", "457836", "346785", "468735"),
    "gavel_makespan": ("863745", "583674", "846357", "645738"),
    "gavel_max_min": ("367458", "457836", "374685", "648735"),
    "gavel_max_min_agnostic": ("346758", "457836", "346785", "468735"),
    "gavel_proportional": ("345678", "345678", "345678", "463578"),
    "gavel_sjf": ("473568", "456783", "345786", "483756"),
    "gavel_strategy_proof": ("346758", "578436", "346875", "486735"),
    "gavel_sum": ("346758", "457836", "467835", "468735"),
    "gittins": ("345687", "784653", "735864", "435678"),
    "grouper": ("456837", "864537", "478635", "758436"),
    "hug": ("346758", "374568", "354678", "843756"),
    "karuna": ("583674", "874536", "546837", "468753"),
    "las": ("456378", "785436", "358746", "435687"),
    "learned_gittins": ("456837", "745836", "734586", "436785"),
    "longest_pending": ("456738", "784365", "358746", "345786"),
    "lucid": ("437568", "476835", "734568", "784356"),
    "mlfs": ("463578", "784536", "387564", "483576"),
    "qssf": ("456378", "573486", "743658", "483675"),
    "sjf": ("457368", "476385", "753486", "783456"),
    "srsf": ("437568", "476853", "734586", "784356"),
    "srtf": ("457368", "476385", "753486", "783456"),
    "static_priority": ("634578", "345678", "345678", "687345"),
    "tagged": ("456387", "753648", "473658", "483657"),
    "themis": ("345678", "456783", "345786", "463578"),
    "themis_convex": ("456387", "476583", "475368", "487635"),
}
"""Waiting jobs of each situation by policy, the first to start first."""

PARAMETERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "edf": {"admits": False},
    "static_priority": {"priority_by_qos": [["high", 1.0]]},
}
"""Of policies that order nothing by their defaults; of edf its order alone, without promises."""

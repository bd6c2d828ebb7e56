"""The shadow report: its sums against an oracle, its tables, its page."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.cli.dlctl.command import dlctl
from slurm_dl.config import Config
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.model.errors import SlurmDlError
from slurm_dl.model.jobs import F64
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.shadow import timed_counterfactual
from slurm_dl.shadow.counterfactual import (
    Cast,
    Effects,
    Player,
    Progress,
    Simulated,
    cast_of,
    effects,
    shape_of,
    simulated_of,
    size_of,
)
from slurm_dl.shadow.html_report import page
from slurm_dl.shadow.records import EndedJobRecord, Lookout, WishedHandover, WishedVictim, written
from slurm_dl.shadow.report_data import Report, covered_s, loss_of, period_of, report_of, sooner_s
from slurm_dl.shadow.segment_store import JOB, Kept, SegmentStore, UnfinishedJobs
from slurm_dl.shadow.terminal_report import doubts
from slurm_dl.shadow.timed_counterfactual import sampled
from slurm_dl.simulation.cluster_shape import ClusterShape

BEGIN_S = 1_800_000_000.0
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\x1b[2J\u202e"
CHROMIUM = shutil.which("chromium")
SHAPE = shape_of([(2, 4, "a100")])


def lookout(from_s: float = 0.0, to_s: float = 3600.0, **more: Any) -> Lookout:  # noqa: ANN401
    """Looks from *from_s* to *to_s*, seconds after the beginning."""
    values: dict[str, Any] = {
        "from_s": BEGIN_S + from_s, "to_s": BEGIN_S + to_s, "looks": 100, "missed": 0,
        "policy": "discrete_las", "mode": "external", "gpus": 8.0, "held": 6.0, "waiting": 3.0,
        "compared": 80, "first_other": 40, "others": 0.25, "wishes": 1, "tripped": 0,
        "shape": ((2, 4, "a100"),), **more,
    }  # fmt: skip
    return Lookout(**values)


def victim(job_id: int, *, gpus: float = 4, ran_s: float = 7200, uid: int = 7) -> WishedVictim:
    """A run that would be stopped, with a grace of 120 s."""
    return WishedVictim(
        job_id=job_id, restarts=0, uid=uid, account="nlp", gpus=gpus, ran_s=ran_s, grace_s=120
    )


def wish(lead: int, *victims: WishedVictim, at_s: float = 60, **more: Any) -> WishedHandover:  # noqa: ANN401
    """A hand-over for *lead*, wished *at_s* after the beginning."""
    values: dict[str, Any] = {
        "key": f"preempt {lead}:0", "purpose": "preempt", "lead": lead, "lead_uid": 8,
        "lead_account": "vision", "lead_gpus": 2.0, "beneficiaries": (lead,), "victims": victims,
        "gpus": sum(v.gpus for v in victims), "why": "job 2 is in a better tier",
        "begin_s": BEGIN_S + at_s, "last_s": BEGIN_S + at_s + 100, **more,
    }  # fmt: skip
    return WishedHandover(**values)


def job(job_id: int, submit_s: float, start_s: float, ran_s: float, **more: Any) -> EndedJobRecord:  # noqa: ANN401
    """A job that ended; times after the beginning."""
    values: dict[str, Any] = {
        "job_id": job_id, "uid": 7 + job_id % 2, "account": "nlp", "gpus": 4.0,
        "submit_s": BEGIN_S + submit_s, "start_s": BEGIN_S + start_s, "ran_s": ran_s,
        "end_s": BEGIN_S + start_s + ran_s, "how": "C", "opted_in": True, **more,
    }  # fmt: skip
    return EndedJobRecord(**values)


def effects_on(players: tuple[Player, ...], plain_s: F64, policy_s: F64) -> Effects:
    """What became of *players*, who waited as long as they took."""
    return Effects(
        players=players, plain_wait_s=plain_s, policy_wait_s=plain_s, plain_jct_s=plain_s,
        policy_jct_s=policy_s, preemptions=0, lost_gpu_s=0, open_ended=0,
    )  # fmt: skip


def observed(*wishes: WishedHandover, **more: Any) -> Report:  # noqa: ANN401
    """The report of an hour with these wishes."""
    period = period_of(Kept((lookout(**more), *wishes), None, 0), 0.0)
    assert period is not None
    return report_of(period, bad=0, restart_s=60.0, name_of=lambda uid: f"user{uid}")


# What preemption costs.


victims_drawn = st.builds(
    WishedVictim,
    job_id=st.integers(1, 4),
    restarts=st.integers(0, 1),
    uid=st.integers(0, 3),
    account=st.sampled_from(["a", "b"]),
    gpus=st.sampled_from([0.5, 1.0, 4.0, 100.0]),
    ran_s=st.floats(0, 1e6),
    grace_s=st.floats(1, 600),
)


@given(
    sets=st.lists(st.lists(victims_drawn, min_size=1, max_size=4), max_size=5),
    restart_s=st.floats(0, 300),
)
def test_the_price_is_that_of_each_run_once(
    sets: list[list[WishedVictim]], restart_s: float
) -> None:
    """Against a sum that is written down run by run; users' shares make up the whole."""
    found = [wish(10 + i, *victims) for i, victims in enumerate(sets)]

    loss = loss_of(found, restart_s)

    gpu_h = worst_gpu_h = 0.0
    seen = []
    for victims in sets:
        for v in victims:
            if [v.job_id, v.restarts] not in seen:
                seen.append([v.job_id, v.restarts])
                gpu_h += v.gpus * v.grace_s / 3600 + v.gpus * restart_s / 3600
                worst_gpu_h += v.gpus * (v.grace_s + restart_s + v.ran_s) / 3600
    assert loss.runs == len(seen)
    assert loss.if_saved_gpu_h == pytest.approx(gpu_h)
    assert loss.if_not_gpu_h == pytest.approx(worst_gpu_h)
    if found:
        report = dataclasses.replace(observed(*found))
        for groups in report.touched.values():
            assert sum(t.stopped for t in groups) == loss.runs


def test_a_known_price() -> None:
    """4 GPUs for 120 s of grace and 60 s of restart are 0.2 GPU-hours; 2 h of work are 8 more."""
    loss = observed(wish(2, victim(1)), wish(3, victim(1), at_s=900)).loss

    assert (loss.runs, loss.gpus) == (1, 4.0)
    assert loss.if_saved_gpu_h == pytest.approx(0.2)
    assert loss.if_not_gpu_h == pytest.approx(8.2)


@pytest.mark.parametrize(
    ("more", "expected_s"),
    [
        ({"end": "started", "started_s": BEGIN_S + 60 + 1000}, 880.0),
        ({"end": "started", "started_s": BEGIN_S + 60 + 100}, 0.0),
        ({"end": "gone"}, 0.0),
        ({"end": "unseen", "last_s": BEGIN_S + 60 + 500}, 380.0),
        ({"lead": 0, "purpose": "defragment"}, 0.0),
        ({}, 3600.0 - 60 - 120),
    ],
    ids=["started", "started within the grace", "gone", "unseen", "for nobody", "waits still"],
)
def test_how_much_sooner(more: dict[str, Any], expected_s: float) -> None:
    """What the job waited beyond the longest grace of its victims."""
    one = dataclasses.replace(wish(2, victim(1)), **more)

    assert sooner_s(one, BEGIN_S + 3600) == expected_s


def test_time_that_nobody_saw_does_not_count() -> None:
    """Minutes between look-outs do, an hour does not."""
    lookouts = (lookout(0, 600), lookout(700, 1200), lookout(5000, 5600))

    assert covered_s(lookouts, BEGIN_S) == 1200 + 600
    assert covered_s(lookouts, BEGIN_S + 300) == 900 + 600


def test_only_the_time_asked_for_is_in_it() -> None:
    """Wishes that were over before, and jobs that had ended, are left out; open ones are not.

    A wish that nobody wished for any more is open all the same until its job starts.
    """
    wishes = (
        wish(2, victim(1), end="started", started_s=BEGIN_S + 300),
        wish(6, victim(1), end="gone"),
        wish(7, victim(1), end="unseen"),
        wish(8, victim(1), end="started", started_s=BEGIN_S + 5050),
        wish(9, victim(1)),
        wish(3, victim(1), at_s=5100, end="gone"),
    )
    ended = (job(4, 0, 0, 500), job(5, 0, 0, 5200))
    kept = Kept((lookout(0, 600), lookout(5000, 5600), *wishes, *ended), None, 0)

    period = period_of(kept, BEGIN_S + 4000)

    assert [w.lead for w in period.wishes] == [8, 9, 3]
    assert [j.job_id for j in period.ended] == [5]
    assert period_of(kept, BEGIN_S + 9000) is None


def test_sizes() -> None:
    """Each number of GPUs is in one class."""
    sizes = {0.25: "1", 1: "1", 2: "2-4", 8: "5-8", 16: "9-16", 64: "17-64", 65: "65 and more"}
    assert {gpus: size_of(gpus) for gpus in sizes} == sizes


# The counterfactual.


def queue_of(lengths_s: Sequence[float]) -> list[EndedJobRecord]:
    """Jobs of a whole node, submitted a minute apart, served in turn on two nodes."""
    free = [0.0, 0.0]
    jobs = []
    for i, length_s in enumerate(lengths_s):
        node = free.index(min(free))
        start_s = max(free[node], 60.0 * i)
        free[node] = start_s + length_s
        jobs.append(job(i + 1, 60.0 * i, start_s, length_s))
    return jobs


def simulated(
    jobs: Sequence[EndedJobRecord], standing: UnfinishedJobs | None = None
) -> tuple[Effects, Cast]:
    """The counterfactual of *jobs* under Tiresias with short queues."""
    end_s = max(j.end_s for j in jobs)
    cast = cast_of(jobs, standing, SHAPE, BEGIN_S, end_s)
    settings = Settings(
        partitions=frozenset({"gpu"}),
        preemption=Preemption(min_quantum_s=60, cooldown_s=60, max_grace_s=300),
    )
    policy = DiscreteLas(thresholds_gpu_s=(3600.0, 40000.0))
    return effects(cast, SHAPE, policy, settings, begin_s=BEGIN_S), cast


def table_of(outcome: Effects, cast: Cast, name_of: Callable[[int], str]) -> Simulated:
    """Its tables, all jobs of a cluster of 8 GPUs."""
    return simulated_of(
        outcome, cast, name_of, jobs_in_all=len(cast.players), gpus=8, gpus_in_all=8
    )


def test_short_jobs_behind_long_ones_are_helped() -> None:
    """Two long jobs hold all nodes; six short ones wait for them, and do not under the policy."""
    jobs = queue_of([40_000, 40_000, *[600] * 6])

    outcome, cast = simulated(jobs)

    table = table_of(outcome, cast, lambda uid: f"user{uid}")
    assert outcome.preemptions > 0
    assert outcome.helped[2:].all()
    assert not outcome.helped[:2].any()
    assert table.total.policy_jct_s < table.total.plain_jct_s
    # The simulated Slurm starts them in the order and about when they really started.
    assert table.model_wait_s == pytest.approx(table.real_wait_s, rel=0.05)
    for groups in table.by.values():
        assert sum(b.jobs for b in groups) == 8


def test_who_takes_part() -> None:
    """Running at the beginning: with the rest; open ends: not counted; never run: left out."""
    standing = np.zeros(3, dtype=JOB)
    standing["job_id"] = [20, 21, 22]
    standing["gpus"], standing["tasks"] = 4.0, [1, 5, 1]
    standing["submit_s"] = BEGIN_S + 10
    standing["start_s"] = [BEGIN_S + 100, 0, BEGIN_S + 100]
    standing["ran_s"] = [500, 0, 500]
    standing["gpus"][2] = 7.0
    jobs = [
        job(1, -900, -500, 800),
        job(2, -300, 400, 100),
        job(3, 50, 60, 70, how="V"),
        job(4, -900, -800, 100),
    ]

    cast = cast_of(
        jobs, UnfinishedJobs(BEGIN_S + 600, standing, ("nlp",)), SHAPE, BEGIN_S, BEGIN_S + 600
    )

    told = {p.job_id: (p.arrive_s - BEGIN_S, p.duration_s, p.ended) for p in cast.players}
    assert told == {
        1: (0.0, 300.0, True),
        2: (0.0, 100.0, True),
        3: (50.0, 70.0, False),
        20: (10.0, 500.0, False),
    }
    assert cast.players[0].job_id == 1
    waits = {p.job_id: p.real_wait_s for p in cast.players}
    assert math.isnan(waits[1])
    assert waits[2] == 400.0
    assert (cast.never_ran, cast.unfit) == (5, 1)


times = st.lists(st.floats(1, 1e6), min_size=1, max_size=12)


@given(plain=times, change=st.lists(st.floats(0.1, 10), min_size=12, max_size=12))
def test_helped_hurt_and_same_are_all(plain: list[float], change: list[float]) -> None:
    """In every group, for any times; a job is never both."""
    n = len(plain)
    jct_s = np.array(plain)
    players = tuple(
        Player(
            job_id=i, uid=i % 3, account="ab"[i % 2], gpus=float(2 ** (i % 8)), arrive_s=0,
            duration_s=1, real_wait_s=math.nan, ended=True, opted_in=True,
        )
        for i in range(n)
    )  # fmt: skip
    outcome = effects_on(players, jct_s, jct_s * np.array(change[:n]))

    table = table_of(outcome, Cast(players=(), never_ran=0, unfit=0), str)

    assert not (outcome.helped & outcome.hurt).any()
    for groups in ((table.total,), *table.by.values()):
        assert sum(b.jobs for b in groups) == n
        for b in groups:
            assert b.helped + b.hurt + b.same == b.jobs
            assert min(b.helped, b.hurt, b.same) >= 0
            assert bool(b.worst_s) == bool(b.hurt)


# What is said.


def test_what_is_doubtful_is_said() -> None:
    """Gaps, changes, breakers, native preemption, missed looks: each has its sentence."""
    later = lookout(9000, 9600, policy="fifo", mode="native", missed=2)
    kept = Kept((lookout(0, 600, tripped=3), later, wish(2, victim(1))), None, 4)
    period = period_of(kept, 0.0)
    assert period is not None
    report = report_of(period, bad=kept.bad, restart_s=60, name_of=str)

    said = " ".join(doubts(dataclasses.replace(report, why_not="--simulate 0")))
    quiet = " ".join(doubts(observed()))

    for words in ("Nobody looked for", "2 looks", "4 lines", "was changed", "native", "breaker"):
        assert words in said
        assert words not in quiet
    assert "not simulated: --simulate 0" in said


def test_a_model_that_is_far_from_reality_is_not_to_be_believed() -> None:
    """Twice as much and five minutes more, either way."""
    outcome, cast = simulated(queue_of([600, 600, 100]))
    sim = table_of(outcome, cast, str)
    far = {
        (100, 110): False,
        (7200, 800): True,
        (800, 7200): True,
        (10, 200): False,
        (0, 600): True,
    }
    for (real_s, model_s), is_far in far.items():
        sim = dataclasses.replace(sim, real_wait_s=float(real_s), model_wait_s=float(model_s))
        said = " ".join(doubts(dataclasses.replace(observed(), simulated=sim)))
        assert ("do not believe" in said) == is_far


# The page.


class Seen(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in {"meta", "link"} and self.get_starttag_text()[-2:] != "/>":  # type: ignore[index]
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element without content."""
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        """The innermost element ends."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Text that is shown."""
        self.text += data


def hostile_report() -> Report:
    """Every text that somebody else wrote is an attack."""
    bad = dataclasses.replace(victim(1), account=HOSTILE)
    evil = wish(2, bad, lead_account=HOSTILE, why=HOSTILE, purpose=HOSTILE)
    report = observed(evil, policy=HOSTILE, mode=HOSTILE)
    jobs = [dataclasses.replace(j, account=HOSTILE) for j in queue_of([4000, 4000, 600])]
    sim = table_of(*simulated(jobs), lambda _: HOSTILE)
    touched = {
        what: tuple(dataclasses.replace(t, group=HOSTILE) for t in groups)
        for what, groups in report.touched.items()
    }
    return dataclasses.replace(report, why_not=HOSTILE, simulated=sim, touched=touched)


def test_hostile_names_are_text_and_nothing_else() -> None:
    """No element, no attribute and no control character comes from a name; tags are balanced."""
    seen = Seen()
    raw = page(hostile_report())
    seen.feed(raw.decode())
    seen.close()

    assert not seen.open
    assert "<script>alert(1)</script>" in seen.text
    assert {"script", "img", "iframe", "object"}.isdisjoint(seen.tags)
    assert not [a for a, _ in seen.attributes if a.startswith("on")]
    addresses = [v for a, v in seen.attributes if a in {"src", "href", "action", "data"}]
    assert addresses == ["data:,"]
    assert b"http" not in raw.replace(b"http-equiv", b"")
    assert b"\x1b" not in raw
    assert "\u202e" not in raw.decode()


def test_an_empty_report_is_a_page_too() -> None:
    """No wish, no simulation."""
    seen = Seen()
    seen.feed(page(dataclasses.replace(observed(), why_not="no job has ended")).decode())

    assert not seen.open
    assert "it would have begun no hand-over" in seen.text


@pytest.mark.full("needs Chromium")
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_shows_the_page_and_complains_of_nothing(tmp_path: Path) -> None:
    """Nothing is loaded or run, and the console is empty, hostile names and all."""
    path = tmp_path / "report.html"
    path.write_bytes(page(hostile_report()))

    done = subprocess.run(
        [
            *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu"),
            *("--disable-dev-shm-usage", f"--user-data-dir={tmp_path / 'profile'}"),
            *("--enable-logging=stderr", "--dump-dom", path.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    assert "CONSOLE" not in done.stderr
    assert "How sure this is" in done.stdout
    assert "<img" not in done.stdout
    assert "<script" not in done.stdout


# The command.


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A state directory with half an hour of shadow mode, and its configuration."""
    now_s = time.time()
    state = tmp_path / "state"
    state.mkdir()
    shift = now_s - 1800 - BEGIN_S
    seen = dataclasses.replace(
        lookout(0, 1800), from_s=BEGIN_S + shift, to_s=BEGIN_S + 1800 + shift
    )
    wished = wish(2, dataclasses.replace(victim(1), account=HOSTILE[:64]), at_s=shift + 60)
    short = [
        dataclasses.replace(
            j, submit_s=j.submit_s + shift, start_s=j.start_s + shift, end_s=j.end_s + shift
        )
        for j in queue_of([900, 900, 100, 100])
    ]
    SegmentStore(state / "shadow").append(written(line) for line in (seen, wished, *short))
    config = tmp_path / "dl.yaml"
    config.write_text(
        f"manage: {{partitions: [gpu]}}\npaths: {{state_dir: {state}, profile_dir: {state}}}\n",
        "utf-8",
    )
    return config


def shadow_report(config: Path, *words: str) -> Result:
    """Run ``dlctl shadow-report``."""
    return CliRunner().invoke(dlctl, ["shadow-report", "--config", str(config), *words])


def test_the_command_prints_plain_text_into_a_pipe(site: Path) -> None:
    """The wish with victim, beneficiary, GPUs and reason; no line is longer than it has to be."""
    done = shadow_report(site)

    assert done.exit_code == 0, done.output
    assert "it would have begun 1 hand-over, stopping 1 run on 4 GPUs" in " ".join(
        done.stdout.split()
    )
    (row,) = (line for line in done.stdout.splitlines() if "better tier" in line)
    assert row.split()[2:6] == ["preempt", "2", "1", "4"]
    assert "helped" in done.stdout.lower()
    assert "simulating 4 jobs" in done.stderr
    assert "\x1b" not in done.stdout


def test_the_command_as_json_and_as_a_page(site: Path, tmp_path: Path) -> None:
    """What is not known is null; the page, with names of users in it, is private and whole."""
    told = json.loads(shadow_report(site, "--json", "--simulate", "0").stdout)
    assert told["simulated"] is None
    assert told["why_not"] == "--simulate 0"
    assert told["loss"]["runs"] == 1
    assert told["wishes"][0]["victims"][0]["job_id"] == 1

    path = tmp_path / "out.html"
    done = shadow_report(site, "--html", str(path))
    assert done.exit_code == 0, done.output
    assert path.stat().st_mode & 0o077 == 0
    assert path.read_bytes().endswith(b"</html>\n")
    assert "written to" in done.stdout


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--since", "soon"), 2, "90m, 24h or 7d"),
        (("--since", "1m"), 1, "see --since"),
        (("--html", "/nowhere/x.html"), 1, "cannot write /nowhere/x.html"),
        (("--set", "paths.state_dir=/nowhere"), 1, "has dlschedd run in shadow mode"),
    ],
)
def test_mistakes_say_what_to_do(
    site: Path, words: tuple[str, ...], status: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with its own exit status."""
    later_s = time.time() + 3600
    if "1m" in words:
        monkeypatch.setattr(time, "time", lambda: later_s)
    done = shadow_report(site, *words)

    assert done.exit_code != 0
    assert said in done.output + str(done.exception)
    assert (done.exit_code == 2) == (status == 2)


def test_of_too_many_jobs_a_sample_is_simulated(site: Path) -> None:
    """It says so, in every form of the report; half a node is none."""
    done = shadow_report(site, "--json", "--simulate", "2")

    sim = json.loads(done.stdout)["simulated"]
    assert (sim["jobs_taken"], sim["jobs_in_all"]) == (2, 4)
    assert (sim["gpus"], sim["gpus_in_all"]) == (4, 8)
    assert sim["total"]["jobs"] == 2
    assert "simulating 2 of 4 jobs on 4 of 8 GPUs: plain Slurm" in done.stderr
    told = " ".join(shadow_report(site, "--simulate", "2").stdout.split())
    assert "this is a sample: 2 of 4 jobs" in told
    none = json.loads(shadow_report(site, "--json", "--simulate", "1").stdout)
    assert none["simulated"] is None
    assert "there are 4 jobs" in none["why_not"]
    assert "take --simulate" in none["why_not"]


def test_a_sample_has_the_load_of_all() -> None:
    """The same GPU-seconds for each GPU, though few jobs are most of them; nobody twice."""
    rng = np.random.default_rng(3)
    sizes = rng.choice([1.0, 2.0, 4.0], 400)
    lengths_s = np.exp(rng.normal(7, 1.8, 400))
    jobs = [
        job(i + 1, -500 if i < 40 else 10 * i, -100 if i < 40 else 20 * i, s, gpus=g)
        for i, (g, s) in enumerate(zip(sizes.tolist(), lengths_s.tolist(), strict=True))
    ]
    shape = shape_of([(40, 4, "a100"), (8, 2, "v100")])
    cast = cast_of(jobs, None, shape, BEGIN_S, BEGIN_S + 1e6)

    some, small = sampled(cast, shape, 100)

    def load(cast: Cast, shape: ClusterShape) -> float:
        return sum(p.gpus * p.duration_s for p in cast.players) / shape.gpus

    assert [g.nodes for g in small.groups] == [10, 2]
    assert len({p.job_id for p in some.players}) == len(some.players) == pytest.approx(100, abs=3)
    assert load(some, small) == pytest.approx(load(cast, shape), rel=0.1)
    assert sum(math.isnan(p.real_wait_s) for p in some.players) == pytest.approx(10, abs=1)
    assert [p.arrive_s for p in some.players] == sorted(p.arrive_s for p in some.players)
    assert sampled(cast, shape, 400) == (cast, shape)


def with_gangs(gangs: int, duration_s: float) -> tuple[Cast, ClusterShape]:
    """Twelve jobs of one node, and *gangs* over half of the cluster."""
    jobs = queue_of([100.0] * 12)
    large = queue_of([duration_s] * gangs)
    jobs += [dataclasses.replace(j, job_id=100 + i, gpus=16.0) for i, j in enumerate(large)]
    shape = shape_of([(8, 4, "a100")])
    return cast_of(jobs, None, shape, BEGIN_S, BEGIN_S + 1e5), shape


def test_a_job_that_is_larger_than_the_sample_is_left_out_and_counted() -> None:
    """A gang over half the cluster fits no quarter of it."""
    cast, shape = with_gangs(1, 20.0)

    some, small = sampled(cast, shape, 4)

    assert small.gpus == 8
    assert {p.gpus for p in some.players} == {4.0}
    assert len(some.players) == 3
    assert (cast.unfit, some.unfit) == (0, 1)


@pytest.mark.parametrize(("gangs", "duration_s"), [(4, 100.0), (1, 60.0)])
def test_no_sample_without_the_jobs_that_are_the_load(gangs: int, duration_s: float) -> None:
    """What waits for nothing helps and hurts nobody; that would be no answer."""
    cast, shape = with_gangs(gangs, duration_s)

    with pytest.raises(
        SlurmDlError, match=r"too large for a sample .* take --simulate \d+$"
    ) as why:
        sampled(cast, shape, 4)

    # What it says is to be taken does, and one fewer does not.
    enough = int(str(why.value).rpartition(" ")[2])
    assert sampled(cast, shape, enough)[0].unfit == 0
    with pytest.raises(SlurmDlError, match=rf"take --simulate {enough}$"):
        sampled(cast, shape, enough - 1)


def test_where_there_is_no_sample_what_was_recorded_is_told(site: Path) -> None:
    """All of it, and why there is no more; with the number of jobs that would do."""
    now_s = time.time()
    shift = now_s - 1700 - BEGIN_S
    gang = dataclasses.replace(job(50, shift, shift + 10, 900, gpus=8.0), account="vision")
    SegmentStore(site.parent / "state" / "shadow").append([written(gang)])

    done = shadow_report(site, "--simulate", "3")

    assert done.exit_code == 0, done.output
    told = " ".join(done.stdout.split())
    assert "it would have begun 1 hand-over" in told
    assert "not simulated: 47% of the GPU time is of jobs that are too large" in told
    assert "take --simulate 4. What was recorded, above, does not depend on it." in told
    sim = json.loads(shadow_report(site, "--json", "--simulate", "4").stdout)["simulated"]
    assert sim is not None


def test_a_mistake_of_several_lines_is_one_sentence(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says stays apart."""

    def wrong(*_: object, **__: object) -> Simulated:
        msg = "a.yaml:1: name: is required\na.yaml:2: unknown key"
        raise SlurmDlError(msg)

    monkeypatch.setattr("slurm_dl.cli.dlctl.shadow_report.simulated", wrong)

    told = json.loads(shadow_report(site, "--json").stdout)

    assert told["why_not"] == "a.yaml:1: name: is required; a.yaml:2: unknown key"


def within(
    step_s: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[Simulated, list[str], list[int]]:
    """A simulation that may take a thousand seconds, with two hundred steps of *step_s* each.

    Returns:
        What came of it, what was said, and how many jobs took part in each try.
    """
    time_s, tries = [0.0], list[int]()

    def run(cast: Cast, *_: object, progress: Progress, **__: object) -> Effects:
        tries.append(len(cast.players))
        for what in ("plain Slurm", "the configured policy"):
            for i in range(1, 101):
                time_s[0] += step_s * len(cast.players) / 1000
                progress(what, i / 100)
        jct_s = np.ones(len(cast.players))
        return effects_on(cast.players, jct_s, jct_s)

    monkeypatch.setattr(timed_counterfactual, "effects", run)
    short = [job(i + 1, 3.0 * i, 3.0 * i, 60) for i in range(1000)]
    period = period_of(Kept((lookout(shape=((100, 4, "a100"),)), *short), None, 0), 0.0)
    assert period is not None
    said: list[str] = []
    found = timed_counterfactual.simulated(
        period,
        None,
        Config.model_validate({"manage": {"partitions": ["gpu"]}}),
        most_jobs=2000,
        within_s=1000.0,
        name_of=str,
        say=said.append,
        clock=lambda: time_s[0],
    )
    return found, said, tries


def test_how_far_the_simulation_is_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each tenth of each run. What takes too long is done with a sample.

    After 600 of 800 seconds; with half of what the first try would have come through.
    """
    found, said, tries = within(2.9, monkeypatch)
    tenths = [f"  {i}0% of the jobs are done" for i in range(1, 11)]
    assert said == [
        *("simulating 1,000 jobs: plain Slurm", *tenths),
        *("simulating 1,000 jobs: the configured policy", *tenths),
    ]
    assert tries == [1000]
    assert not found.is_sample

    found, said, tries = within(4.0, monkeypatch)
    assert tries == [1000, 380]
    assert "  that takes too long: 75% of it is done" in said
    assert "simulating 380 of 1,000 jobs on 152 of 400 GPUs: plain Slurm" in said
    assert (found.jobs_taken, found.jobs_in_all) == (380, 1000)
    assert (found.gpus, found.gpus_in_all) == (152, 400)
    with pytest.raises(SlurmDlError, match=r"not done within 17 min; allow more with --within"):
        within(100.0, monkeypatch)

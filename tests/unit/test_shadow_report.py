"""The shadow report: its sums against an oracle, its tables, its page."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.cli.dlctl.command import dlctl
from slurm_dl.config import Config
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.ledger.sqlite.store import SqliteStore
from slurm_dl.ledger.store_protocol import (
    MinuteTotals,
    PlannedHandover,
    PlannedVictim,
    ShadowJob,
    ShadowRecord,
    StoreChange,
)
from slurm_dl.model.completed_jobs import Records
from slurm_dl.model.errors import SlurmDlError
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.shadow import counterfactual, report_data
from slurm_dl.shadow.counterfactual import all_of, both, compared, sampled
from slurm_dl.shadow.html_report import page
from slurm_dl.shadow.report_data import Report, Simulated, as_json
from slurm_dl.shadow.terminal_report import doubts
from slurm_dl.simulation.slurm.scenario import Scenario

BEGIN_S = 1_800_000_000.0
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\x1b[2J\u202e"
CHROMIUM = shutil.which("chromium")


def lookout(from_s: float = 0.0, to_s: float = 3600.0, **more: Any) -> MinuteTotals:  # noqa: ANN401
    """Looks from *from_s* to *to_s*, seconds after the beginning."""
    values: dict[str, Any] = {
        "looks": 100, "missed": 0, "policy": "discrete_las", "mode": "external", "gpus": 8.0,
        "held": 6.0, "waiting": 3.0, "compared": 80, "first_other": 40, "others": 0.25,
        "wishes": 1, "tripped": 0, "shape": ((2, 4, "a100"),), **more,
    }  # fmt: skip
    return MinuteTotals(from_s=BEGIN_S + from_s, to_s=BEGIN_S + to_s, **values)


def victim(job_id: int, **more: Any) -> PlannedVictim:  # noqa: ANN401
    """A run that would be stopped, with a grace of 120 s."""
    values: dict[str, Any] = {"gpus": 4.0, "ran_s": 7200.0, "account": "nlp", **more}
    return PlannedVictim(job_id=job_id, restarts=0, uid=7, grace_s=120, **values)


def wish(lead: int, *victims: PlannedVictim, at_s: float = 60, **more: Any) -> PlannedHandover:  # noqa: ANN401
    """A hand-over for *lead*, wished *at_s* after the beginning."""
    values: dict[str, Any] = {
        "key": f"preempt {lead}:0", "purpose": "preempt", "lead": lead, "lead_uid": 8,
        "lead_account": "vision", "lead_gpus": 2.0, "beneficiaries": (lead,), "victims": victims,
        "gpus": sum(v.gpus for v in victims), "why": "job 2 is in a better tier",
        "begin_s": BEGIN_S + at_s, "last_s": BEGIN_S + at_s + 100, **more,
    }  # fmt: skip
    return PlannedHandover(**values)


def job(job_id: int, submit_s: float, start_s: float, ran_s: float, **more: Any) -> ShadowJob:  # noqa: ANN401
    """A job that ended; times after the beginning."""
    values: dict[str, Any] = {"account": "nlp", "gpus": 4.0, "how": "C", **more}
    return ShadowJob(
        job_id=job_id, uid=7 + job_id % 2, submit_s=BEGIN_S + submit_s, start_s=BEGIN_S + start_s,
        ran_s=ran_s, end_s=BEGIN_S + start_s + ran_s, opted_in=True, **values,
    )  # fmt: skip


def period(*lines: object, since_s: float = 0.0, **more: Any) -> Any:  # noqa: ANN401
    """What was recorded as *lines*, from *since_s* after the beginning on; None if nothing was."""
    kinds = {"minutes": MinuteTotals, "planned": PlannedHandover, "ended": ShadowJob}
    kept = {
        name: tuple(line for line in lines if isinstance(line, kind))
        for name, kind in kinds.items()
    }
    values: dict[str, Any] = {"unfinished": (), **kept, **more}
    return report_data.period_of(ShadowRecord(**values), BEGIN_S + since_s)


def observed(*wishes: PlannedHandover, **more: Any) -> Report:  # noqa: ANN401
    """The report of an hour with these wishes."""
    return report_data.report_of(period(lookout(**more), *wishes), 60.0, str)


# What was observed.


victims_drawn = st.builds(
    PlannedVictim,
    **{name: st.integers(0, 3) for name in ("job_id", "restarts", "uid")},
    account=st.sampled_from("ab"),
    **{name: st.floats(0.5, 1e5) for name in ("gpus", "ran_s", "grace_s")},
)


@given(
    sets=st.lists(st.lists(victims_drawn, min_size=1, max_size=4), max_size=5),
    restart_s=st.floats(0, 300),
)
def test_the_price_is_that_of_each_run_once(
    sets: list[list[PlannedVictim]], restart_s: float
) -> None:
    """Against a sum that is written down run by run; users' shares make up the whole."""
    found = [wish(10 + i, *victims) for i, victims in enumerate(sets)]

    loss = report_data.loss_of(found, restart_s)

    once: dict[tuple[int, int], PlannedVictim] = {}
    for v in (v for victims in sets for v in victims):
        once.setdefault((v.job_id, v.restarts), v)
    gpu_h = sum(v.gpus * v.grace_s / 3600 + v.gpus * restart_s / 3600 for v in once.values())
    run_gpu_h = sum(v.gpus * v.ran_s / 3600 for v in once.values())
    assert (loss.runs, loss.gpus) == (len(once), sum(v.gpus for v in once.values()))
    assert loss.if_saved_gpu_h == pytest.approx(gpu_h)
    assert loss.if_not_gpu_h == pytest.approx(gpu_h + run_gpu_h)
    for groups in observed(*found).touched.values():
        assert sum(t.stopped for t in groups) == loss.runs


@pytest.mark.parametrize(
    ("more", "expected_s"),
    [
        ({"end": "started", "started_s": BEGIN_S + 1060}, 880),
        ({"end": "started", "started_s": BEGIN_S + 160}, 0),
        ({"end": "gone"}, 0),
        ({"end": "unseen", "last_s": BEGIN_S + 560}, 380),
        ({"lead": 0, "purpose": "defragment"}, 0),
        ({}, 3420),
    ],
)
def test_how_much_sooner(more: dict[str, Any], expected_s: float) -> None:
    """The wait of the job beyond the longest grace of its victims."""
    one = dataclasses.replace(wish(2, victim(1)), **more)

    assert report_data.sooner_s(one, BEGIN_S + 3600) == expected_s


def test_time_that_nobody_saw_does_not_count() -> None:
    """Minutes between look-outs do, an hour does not."""
    lookouts = (lookout(0, 600), lookout(700, 1200), lookout(5000, 5600))

    assert report_data.covered_s(lookouts, BEGIN_S) == 1200 + 600
    assert report_data.covered_s(lookouts, BEGIN_S + 300) == 900 + 600


def test_only_the_time_asked_for_is_in_it() -> None:
    """Wishes that were over before, and jobs that had ended, are left out; open ones are not.

    A wish that nobody wished for any more is open all the same until its job starts.
    """
    ends: dict[int, dict[str, Any]] = {
        2: {"end": "started", "started_s": BEGIN_S + 300},
        6: {"end": "gone"},
        7: {"end": "unseen"},
        8: {"end": "started", "started_s": BEGIN_S + 5050},
        9: {},
        3: {"end": "gone", "at_s": 5100},
    }
    wishes = [wish(lead, victim(1), **more) for lead, more in ends.items()]
    ended = (job(4, 0, 0, 500), job(5, 0, 0, 5200))
    recorded = (lookout(0, 600), lookout(5000, 5600), *wishes, *ended)

    found = period(*recorded, since_s=4000)

    assert ([w.lead for w in found.planned], [j.job_id for j in found.ended]) == ([8, 9, 3], [5])
    assert period(*recorded, since_s=9000) is None


def test_groups() -> None:
    """The most rows first, sizes by size; each number of GPUs is in one class."""
    gpus = (65, 64, 16, 8, 2, 1, 0.25)
    owners = [(i % 3, "b" * (i > 1), float(n)) for i, n in enumerate(gpus)]

    found = report_data.by_group(owners, lambda group, rows: (group, rows), str)

    assert found == {
        "user": (("0", [0, 3, 6]), ("1", [1, 4]), ("2", [2, 5])),
        "account": (("b", [2, 3, 4, 5, 6]), ("-", [0, 1])),
        "size": (
            *(("1", [5, 6]), ("2-4", [4]), ("5-8", [3]), ("9-16", [2]), ("17-64", [1])),
            ("65 and more", [0]),
        ),
    }


# The counterfactual.


def queue_of(lengths_s: Sequence[float]) -> list[ShadowJob]:
    """Jobs of a whole node, submitted a minute apart, served in turn on two nodes."""
    free, jobs = [0.0, 0.0], []
    for i, length_s in enumerate(lengths_s):
        start_s = max(min(free), 60.0 * i)
        free = [max(free), start_s + length_s]
        jobs.append(job(i + 1, 60.0 * i, start_s, length_s))
    return jobs


def simulated(jobs: Sequence[ShadowJob]) -> Simulated:
    """The counterfactual of *jobs* under Tiresias with short queues."""
    whole = all_of(period(lookout(0, max(j.end_s for j in jobs) - BEGIN_S), *jobs))
    settings = Settings(
        partitions=frozenset({"gpu"}),
        preemption=Preemption(min_quantum_s=60, cooldown_s=60, max_grace_s=300),
    )
    policy = DiscreteLas(thresholds_gpu_s=(3600.0, 40000.0))
    runs = both(whole, policy, settings, lambda _run, _name: lambda _left: None)
    return compared(whole, whole, *runs, str)


def test_short_jobs_behind_long_ones_are_helped() -> None:
    """Two long jobs hold all nodes; six short ones wait for them, and do not under the policy."""
    long = [dataclasses.replace(j, account="long") for j in queue_of([40_000, 40_000])]
    table = simulated([*long, *queue_of([40_000, 40_000, *[600] * 6])[2:]])

    short, held = table.by["account"]
    assert table.preemptions > 0
    assert (short.group, short.jobs, short.helped) == ("nlp", 6, 6)
    assert (held.group, held.jobs, held.helped) == ("long", 2, 0)
    assert table.total.policy_jct_s < table.total.plain_jct_s
    # The simulated Slurm starts them in the order and about when they really started.
    assert table.model_wait_s == pytest.approx(table.real_wait_s, rel=0.05)
    for groups in table.by.values():
        assert sum(b.jobs for b in groups) == 8


def test_who_takes_part() -> None:
    """Running at the beginning: with the rest; open ends: not counted; too large: left out."""
    ended = [job(1, -900, -500, 800), job(2, -300, 400, 100), job(4, -900, -800, 100)]
    vanished = job(3, 50, 60, 70, how="V")
    unfinished = [
        job(i, 10, 100, 500, how="V", gpus=n) for i, n in ((20, 4.0), (22, 7.0), (2, 4.0))
    ]

    whole = all_of(period(lookout(0, 600, never_ran=5), *ended, vanished, unfinished=unfinished))

    assert [
        (j.job_id, j.submit_s - BEGIN_S, j.start_s - j.submit_s, j.ran_s, j.how) for j in whole.jobs
    ] == [
        (1, 0.0, -500.0, 300.0, "C"),
        (2, 0.0, 400.0, 100.0, "C"),
        (20, 10.0, 90.0, 500.0, "V"),
        (3, 50.0, 10.0, 70.0, "V"),
    ]
    assert (whole.never_ran, whole.unfit) == (5, 1)


def ran(jct_s: Sequence[float]) -> Records:
    """What became of jobs that waited as long as they took."""
    n, times_s = len(jct_s), np.array(jct_s)
    none = np.zeros(n)
    return Records(
        job_id=tuple(map(str, range(n))), user=none.astype(np.int32), users=("",), gpus=none + 1,
        submit_s=none, start_s=times_s, end_s=times_s, alone_s=none, service_gpu_s=none,
        preemptions=none.astype(np.int32), promotions=none.astype(np.int32), success=none == 0,
    )  # fmt: skip


times = st.lists(st.floats(1, 1e6), min_size=1, max_size=12)


@given(plain=times, change=st.lists(st.floats(0.1, 10), min_size=12, max_size=12))
def test_helped_hurt_and_same_are_all(plain: list[float], change: list[float]) -> None:
    """In every group, for any times; a job is never both."""
    n = len(plain)
    jobs = [job(i, 0, 0, 1, account="ab"[i % 2], gpus=float(2 ** (i % 3))) for i in range(n)]
    whole = all_of(period(lookout(), *jobs))
    policy = [one_s * by for one_s, by in zip(plain, change, strict=False)]
    later = [b - a > max(60, 0.05 * a) for a, b in zip(plain, policy, strict=True)]
    sooner = [a - b > max(60, 0.05 * a) for a, b in zip(plain, policy, strict=True)]

    table = compared(whole, whole, ran(plain), ran(policy), str)

    for groups in ((table.total,), *table.by.values()):
        assert sum(b.hurt for b in groups) == sum(later)
        assert sum(b.helped for b in groups) == sum(sooner)
        assert sum(b.jobs for b in groups) == n
        assert all(b.helped + b.hurt + b.same == b.jobs for b in groups)
        assert all(bool(b.worst_s) == bool(b.hurt) for b in groups)


# What is said.


def test_what_is_doubtful_is_said() -> None:
    """Gaps, changes, breakers, native preemption, missed looks: each has its sentence."""
    later = lookout(9000, 9600, policy="fifo", mode="native", missed=2)
    lines = (lookout(0, 600, tripped=3), later, wish(2, victim(1)))
    report = report_data.report_of(period(*lines), 60.0, str)

    said = " ".join(doubts(dataclasses.replace(report, why_not="--simulate 0")))
    quiet = " ".join(doubts(observed()))

    for words in ("Nobody looked for", "2 planned", "was changed", "native", "breaker"):
        assert words in said
        assert words not in quiet
    assert "not simulated: --simulate 0" in said
    assert as_json(dataclasses.replace(report, gpus=math.nan))["gpus"] is None


@pytest.mark.parametrize(
    ("real_s", "model_s", "is_far"),
    [(100, 110, 0), (7200, 800, 1), (800, 7200, 1), (10, 200, 0), (0, 600, 1)],
)
def test_a_model_that_is_far_from_reality_is_not_to_be_believed(
    real_s: float, model_s: float, *, is_far: int
) -> None:
    """Twice as much and five minutes more, either way."""
    whole = all_of(period(lookout(), job(1, 0, real_s, 1)))

    sim = compared(whole, whole, ran([model_s]), ran([model_s]), str)

    said = " ".join(doubts(dataclasses.replace(observed(), simulated=sim)))
    assert ("do not believe" in said) == is_far


# The page.


def hostile_report() -> Report:
    """Every text that somebody else wrote is an attack."""
    evil = wish(2, victim(1, account=HOSTILE), lead_account=HOSTILE, why=HOSTILE, purpose=HOSTILE)
    recorded = period(lookout(policy=HOSTILE, mode=HOSTILE), evil)
    jobs = [dataclasses.replace(j, account=HOSTILE) for j in queue_of([4000, 4000, 600])]
    report = report_data.report_of(recorded, 60.0, lambda _: HOSTILE)
    return dataclasses.replace(report, why_not=HOSTILE, simulated=simulated(jobs))


@pytest.mark.parametrize(
    ("report", "said"),
    [(hostile_report, "<script>alert(1)</script>"), (observed, "it would have begun no hand-over")],
)
def test_names_are_text_and_nothing_else(report: Callable[[], Report], said: str) -> None:
    """No element, no attribute and no control character comes from a name; tags are balanced."""
    raw = page(report())
    elements = list(ET.fromstring(raw).iter())  # noqa: S314 - it is ours
    attributes = [item for element in elements for item in element.items()]

    assert said in "".join(elements[0].itertext())
    assert {"script", "img", "iframe", "object"}.isdisjoint(e.tag for e in elements)
    assert [v for _, v in attributes if v.startswith("default-src 'none'; style-src 'unsafe-inl")]
    assert not [name for name, _ in attributes if name.startswith("on")]
    assert [v for a, v in attributes if a in {"src", "href", "action", "data"}] == ["data:,"]
    assert not re.search("\x1b|\u202e|http(?!-equiv)", raw.decode())


@pytest.mark.full("needs Chromium")
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_shows_the_page_and_complains_of_nothing(tmp_path: Path) -> None:
    """Nothing is loaded or run, and the console is empty, hostile names and all."""
    path = tmp_path / "report.html"
    path.write_bytes(page(hostile_report()))

    command = (
        *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *(f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--dump-dom"),
    )
    done = subprocess.run(
        [*command, path.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )

    assert "CONSOLE" not in done.stderr
    assert "How sure this is" in done.stdout
    assert "<img" not in done.stdout
    assert "<script" not in done.stdout


# The command.


def moved(line: Any, by_s: float, **more: Any) -> Any:  # noqa: ANN401
    """A job or a minute *by_s* later."""
    names = {"from_s", "to_s", "submit_s", "start_s", "end_s"} & set(line.__slots__)
    return dataclasses.replace(line, **{n: getattr(line, n) + by_s for n in names}, **more)


def keep(state: Path, *rows: Any) -> None:  # noqa: ANN401
    """Write *rows* into the ledger there."""
    with closing(SqliteStore(state / "ledger.sqlite")) as store:
        store.save(StoreChange(noted=rows))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A configuration, and its state directory with half an hour of shadow mode."""
    state = tmp_path / "state"
    state.mkdir()
    shift_s = time.time() - 1800 - BEGIN_S
    wished = wish(2, victim(1, account=HOSTILE[:64]), at_s=shift_s + 60)
    lines = [moved(line, shift_s) for line in queue_of([900, 900, 100, 100])]
    minute = moved(lookout(0, 1800, never_ran=5), shift_s)
    going = moved(job(20, 0, 1700, 100), shift_s, how="")
    keep(state, minute, *lines, wished, going)
    config = tmp_path / "dl.yaml"
    config.write_text(
        f"manage: {{partitions: [gpu]}}\npaths: {{state_dir: {state}, profile_dir: {state}}}\n",
        "utf-8",
    )
    return config


def shadow_report(config: Path, *words: str) -> Result:
    """Run ``dlctl shadow-report``."""
    return CliRunner().invoke(dlctl, ["shadow-report", "--config", str(config), *words])


def told_by(config: Path, *words: str) -> Any:  # noqa: ANN401
    """What it says as JSON of the simulation, or else why there is none."""
    told = json.loads(shadow_report(config, "--json", *words).stdout)
    return told["simulated"] or told["why_not"]


def test_the_command_prints_text_or_json_or_a_page(site: Path, tmp_path: Path) -> None:
    """The wish with victim, beneficiary, GPUs and reason; the page is private and whole."""
    done = shadow_report(site)
    assert done.exit_code == 0, done.output
    told = " ".join(done.stdout.split())
    assert "it would have begun 1 hand-over, stopping 1 run on 4 GPUs" in told
    (row,) = (line for line in done.stdout.splitlines() if "better tier" in line)
    assert row.split()[2:6] == ["preempt", "2", "1", "4"]
    assert "helped" in told.lower()
    assert "simulating 5 jobs" in done.stderr
    assert "\x1b" not in done.stdout

    told = json.loads(shadow_report(site, "--json", "--simulate", "0").stdout)
    assert (told["simulated"], told["why_not"], told["loss"]["runs"]) == (None, "--simulate 0", 1)
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
    whole, sim = told_by(site), told_by(site, "--simulate", "2")

    assert (whole["jobs_taken"], whole["total"]["jobs"]) == (5, 4)
    assert (whole["open_ended"], whole["never_ran"]) == (1, 5)
    assert (sim["jobs_taken"], sim["jobs_in_all"]) == (2, 5)
    assert (sim["gpus"], sim["gpus_in_all"]) == (4, 8)
    done = shadow_report(site, "--simulate", "2")
    assert "simulating 2 of 5 jobs on 4 of 8 GPUs: plain Slurm" in done.stderr
    assert "this is a sample: 2 of 5 jobs" in " ".join(done.stdout.split())
    none = told_by(site, "--simulate", "1")
    assert "there are 5 jobs" in none
    assert "take --simulate" in none


def test_where_there_is_no_sample_what_was_recorded_is_told(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it, and why there is no more, in one sentence; with the jobs that would do."""
    gang = moved(job(50, 0, 10, 900, gpus=8.0), time.time() - 1700 - BEGIN_S)
    keep(site.parent / "state", gang)

    told = " ".join(shadow_report(site, "--simulate", "3").stdout.split())
    assert "it would have begun 1 hand-over" in told
    assert "not simulated: 46% of the GPU time is of jobs that are too large" in told
    enough = re.search(r"take --simulate (\d+)\. What was recorded, above, does not depend", told)
    assert enough is not None
    assert told_by(site, "--simulate", enough[1])["jobs_in_all"] == 6

    def wrong(*_: object, **__: object) -> Simulated:
        msg = "a.yaml:1: name: is required\na.yaml:2: unknown key"
        raise SlurmDlError(msg)

    monkeypatch.setattr("slurm_dl.cli.dlctl.shadow_report.simulated", wrong)
    assert told_by(site) == "a.yaml:1: name: is required; a.yaml:2: unknown key"


# Samples.


def test_a_sample_has_the_load_of_all() -> None:
    """The same GPU-seconds for each GPU, though few jobs are most of them; nobody twice."""
    rng = np.random.default_rng(3)
    sizes, lengths_s = rng.choice([1.0, 2.0, 4.0], 400), np.exp(rng.normal(7, 1.8, 400))
    jobs = [
        job(i + 1, -500 if i < 40 else 10 * i, -100 if i < 40 else 20 * i, s, gpus=g)
        for i, (g, s) in enumerate(zip(sizes.tolist(), lengths_s.tolist(), strict=True))
    ]
    shape = ((40, 4, "a100"), (8, 2, "v100"))
    whole = all_of(period(lookout(0, 1e6, shape=shape), *jobs))

    some = sampled(whole, 100)

    load, load_of_all = (one.gpu_s.sum() / one.shape.gpus for one in (some, whole))
    assert [g.nodes for g in some.shape.groups] == [10, 2]
    assert len({j.job_id for j in some.jobs}) == len(some.jobs) == pytest.approx(100, abs=3)
    assert load == pytest.approx(load_of_all, rel=0.1)
    assert sum(j.start_s < j.submit_s for j in some.jobs) == pytest.approx(10, abs=1)
    assert [j.submit_s for j in some.jobs] == sorted(j.submit_s for j in some.jobs)
    assert sampled(whole, 400) is whole


@pytest.mark.parametrize(
    ("gangs", "duration_s", "is_left_out"), [(1, 20.0, True), (4, 100.0, False), (1, 60.0, False)]
)
def test_a_job_that_is_larger_than_the_sample(
    gangs: int, duration_s: float, *, is_left_out: bool
) -> None:
    """A gang over half the cluster fits no quarter of it: it is left out and counted.

    Not if that is the load: what waits for nothing helps and hurts nobody, and is no answer.
    """
    large = queue_of([duration_s] * gangs)
    jobs = queue_of([100.0] * 12)
    jobs += [dataclasses.replace(j, job_id=100 + i, gpus=16.0) for i, j in enumerate(large)]
    whole = all_of(period(lookout(0, 1e5, shape=((8, 4, "a100"),)), *jobs))
    assert whole.unfit == 0

    if is_left_out:
        some = sampled(whole, 4)
        assert (some.shape.gpus, {j.gpus for j in some.jobs}) == (8, {4.0})
        assert (len(some.jobs), some.unfit) == (3, 1)
        return
    said = r"too large for a sample .* take --simulate (\d+)$"
    with pytest.raises(SlurmDlError, match=said) as why:
        sampled(whole, 4)
    # The number that it names does, and one fewer does not.
    enough = int(str(why.value).rpartition(" ")[2])
    assert sampled(whole, enough).unfit == 0
    with pytest.raises(SlurmDlError, match=rf"take --simulate {enough}$"):
        sampled(whole, enough - 1)


def test_how_far_the_simulation_is_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each tenth of each run. What takes too long is done with a sample.

    After 600 of 1,000 seconds; with half of what the first try would have come through.
    """
    step_s, now_s, tries = 0.0, 0.0, list[int]()

    def run(scenario: Scenario, *, on_step: Callable[[int], None], **_: object) -> SimpleNamespace:
        nonlocal now_s
        n = len(scenario.trace)
        tries.append(n)
        for i in range(1, 101):
            now_s += step_s * n / 1000
            on_step(n - n * i // 100)
        return SimpleNamespace(records=ran([1.0] * n))

    monkeypatch.setattr(counterfactual, "monotonic", lambda: now_s)
    monkeypatch.setattr(counterfactual, "simulate_plain", run)
    monkeypatch.setattr(counterfactual, "simulate_slurm", run)
    short = [job(i + 1, 3.0 * i, 3.0 * i, 60) for i in range(1000)]
    thousand = period(lookout(shape=((100, 4, "a100"),)), *short)
    config = Config.model_validate({"manage": {"partitions": ["gpu"]}})

    def within() -> tuple[Simulated, list[str]]:
        said: list[str] = []
        return counterfactual.simulated(
            thousand, config, most_jobs=2000, within_s=1000.0, name_of=str, say=said.append
        ), said

    step_s = 2.9
    found, said = within()
    tenths = [f"  {i}0% of the jobs are done" for i in range(1, 11)]
    runs = [f"simulating 1,000 jobs: {name}" for name in ("plain Slurm", "the configured policy")]
    assert said == [runs[0], *tenths, runs[1], *tenths]
    assert tries == [1000, 1000]
    assert not found.is_sample

    step_s = 4.0
    found, said = within()
    assert tries[2:] == [1000, 1000, 380, 380]
    assert "  that takes too long: 75% of it is done" in said
    assert "simulating 380 of 1,000 jobs on 152 of 400 GPUs: plain Slurm" in said
    assert (found.jobs_taken, found.jobs_in_all) == (380, 1000)
    assert (found.gpus, found.gpus_in_all) == (152, 400)
    step_s = 100.0
    with pytest.raises(SlurmDlError, match=r"not done within 17 min; allow more with --within"):
        within()

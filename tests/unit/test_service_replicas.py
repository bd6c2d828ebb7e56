"""Replicas of services: which come before batch jobs, and where their rates are from."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import build
import numpy as np
import pytest
from rate_server import rate_server

from slurm_dl import logging_setup
from slurm_dl.config.replicas_section import ServiceEntry
from slurm_dl.daemon.enrich import Enricher
from slurm_dl.daemon.replica_counts import ReplicaCount, read_rate
from slurm_dl.engine.decide import decide
from slurm_dl.engine.replicas import replicas_in
from slurm_dl.engine.settings import Placement, Preemption, Settings
from slurm_dl.estimates.replicas import replicas_for
from slurm_dl.estimates.training_speed import SitePriors
from slurm_dl.model.booking import Entry, entry
from slurm_dl.model.contract import Claim, Contract
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.ids import JobId
from slurm_dl.model.jobs import Held, JobRow
from slurm_dl.model.plan import OpenHandover, Plan, Throttle
from slurm_dl.model.replicas import Replicas
from slurm_dl.model.snapshot import JobText, Snapshot
from slurm_dl.model.throttle import THROTTLE, Throttled
from slurm_dl.policies import registry
from slurm_dl.policies.base import Policy
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.policies.fifo import Fifo
from slurm_dl.policies.las import Las

BATCH, ARRAY = JobId(1), JobId(50)
TEN: dict[str, object] = {"service_s": 1.0, "sla_s": 10.0, "most_replicas": 10, "setup_s": 0.0}
UNKNOWN: dict[str, Any] = {"profiles": {}, "site": SitePriors()}
POLICIES = (Fifo(), Las(), DiscreteLas(), registry.find("static_priority")())


def service(rate: object, **more: object) -> ServiceEntry:
    """An entry of the configuration."""
    return ServiceEntry.model_validate({"user": "ann", "rate": str(rate), **TEN, **more})


def snap_of(
    wanted: int, run: int, tasks: int, *, batch: int = 6, replica_user: str = "ann"
) -> Snapshot:
    """Two nodes of four GPUs; batch jobs that came first, and an array of which *run* tasks run."""
    rows: list[JobRow] = [build.running(BATCH + k, 1, ran_s=9000) for k in range(8 - run)]
    rows += [build.pending(20 + k, 1) for k in range(batch)]
    rows += [build.running(60 + k, 1, ran_s=100.0 - k) for k in range(run)]
    rows += [build.pending(ARRAY, 1, tasks=tasks)] if tasks else []
    texts = {JobId(r.job_id): JobText(label=str(r.job_id), user="bob") for r in rows}
    mine = {"name": "chat", "user": replica_user}
    for k in range(run):
        texts[JobId(60 + k)] = JobText(label=f"50_{k}", **mine)
    texts[ARRAY] = JobText(label=f"50_[{run}-{run + tasks}]", **mine)
    agreed = Claim(contract=Contract(signal="USR1", grace_s=60.0))
    claims = {JobId(r.job_id): agreed for r in rows if r.job_id != ARRAY}
    run_ids = [r.job_id for r in rows if r.start_s]
    held = {j: {k // 4: 1.0} for k, j in enumerate(run_ids)}
    seen = build.observed(
        rows,
        nodes=(4, 4),
        held=held,
        texts=texts,
        claims=claims,
        throttles={ARRAY: 0} if tasks else {},
    )
    jobs = tuple(j for j, text in texts.items() if text.name == "chat" and text.user == "ann")
    told = Replicas(name="chat", wanted=wanted, rate_per_s=2.0, jobs=jobs)
    return dataclasses.replace(build.snapshot(seen), services=(told,))


SETTINGS = Settings(
    partitions=frozenset({"gpu"}),
    preemption=Preemption(min_quantum_s=1, limit_reserve_s=0, cooldown_s=0, commitment="ignored"),
    placement=Placement(),
)


def plan_of(snap: Snapshot, policy: Policy) -> Plan:
    """The decision."""
    return decide(snap, policy, SETTINGS)


@pytest.mark.parametrize("wanted", [1, 2, 4, 9])
@pytest.mark.parametrize("run", [0, 1, 3])
@pytest.mark.parametrize("tasks", [0, 1, 2, 10_000])
def test_as_many_come_first_as_are_wanted(wanted: int, run: int, tasks: int) -> None:
    """Those that run before those that wait; the throttle and the room made are for no more."""
    snap = snap_of(wanted, run, tasks)
    places = replicas_in(snap)
    assert places is not None
    first = {int(j) for j in snap.jobs.job_id[places.first]}
    ran = {60 + k for k in range(min(run, wanted))}
    starts = min(max(wanted - run, 0), tasks)
    assert first == ran | ({int(ARRAY)} if starts else set())
    if tasks:
        row = snap.jobs.rows[ARRAY]
        assert places.running[row] == max(1, min(run, wanted) + starts)
        assert places.barred[row] == (not starts)
        assert places.tasks[row] == (starts or tasks)


def victims_of(plan: Plan) -> dict[int, set[int]]:
    """Victims of the hand-overs that begin, by beneficiary."""
    opened = [a.handover for a in plan.actions if isinstance(a, OpenHandover)]
    return {
        int(job): {int(v.run.job_id) for v in h.victims} for h in opened for job in h.beneficiaries
    }


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize("run", [0, 3, 4])
def test_wanted_replicas_precede_batch_under_every_order(policy: Policy, run: int) -> None:
    """The array came last; GPUs are taken back for its tasks until four run, not for more."""
    snap = snap_of(4, run, 10_000 - run)
    plan, row_of = plan_of(snap, policy), snap.jobs.rows
    batch = [row_of[JobId(20 + k)] for k in range(6)]
    replicas = [row_of[JobId(60 + k)] for k in range(run)]
    replicas += [row_of[ARRAY]] * (run < 4)
    assert plan.rank[replicas].max() < plan.rank[batch].min()
    victims = victims_of(plan).get(ARRAY, set())
    assert bool(victims) == (run < 4)
    assert not victims & {60, 61, 62, 63}
    assert [a.tasks for a in plan.actions if isinstance(a, Throttle)] == [4]
    alone = plan_of(dataclasses.replace(snap, services=()), policy)
    assert not [a for a in alone.actions if isinstance(a, Throttle)]
    assert alone.rank[row_of[ARRAY]] > alone.rank[batch].max()


def test_surplus_replicas_rank_as_batch_jobs() -> None:
    """One of three is wanted: LAS takes GPUs of the others for jobs without service, not of it."""
    snap = snap_of(1, 3, 5)
    plan, row_of = plan_of(snap, Las()), snap.jobs.rows
    assert plan.rank[row_of[JobId(60)]] == 0
    assert plan.rank[row_of[JobId(61)]] > plan.rank[row_of[JobId(20)]]
    victims = set().union(*victims_of(plan).values())
    assert victims & {61, 62}
    assert not victims & {60}
    assert [a.tasks for a in plan.actions if isinstance(a, Throttle)] == [1]
    assert "surplus" in plan.notes[JobId(61)]


class Book(tuple[Entry, ...]):  # noqa: SLOT001 - a tuple has none
    """It counts how often it is read: it may be long, and there may be many services."""

    reads = 0

    def __iter__(self) -> Iterator[Entry]:
        self.reads += 1
        return super().__iter__()


@pytest.mark.parametrize(
    ("own", "held", "first", "second"),
    [
        (0, Held.NO, 4, 0),
        (2, Held.NO, 2, 2),  # Its owner lets two tasks of the first array run
        (2, Held.LIMIT, 2, 2),
        (0, Held.LIMIT, 4, 0),  # Our own throttle holds it back
        (0, Held.USER_OR_ADMIN, 0, 4),
        (0, Held.DEPENDENCY, 0, 4),
    ],
)
def test_a_further_array_has_what_the_first_cannot_start(
    own: int, held: Held, first: int, second: int
) -> None:
    """A held array, or one whose owner bounds it, takes no replica from the next."""
    arrays = ARRAY, JobId(70)
    rows = [build.pending(ARRAY, tasks=9, held=held), build.pending(arrays[1], tasks=9)]
    texts = {j: JobText(label=f"{j}_[0-8]", name="chat", user="ann") for j in arrays}
    seen = build.observed(rows, nodes=(4, 4), texts=texts, throttles={ARRAY: 1, arrays[1]: 0})
    booked = (entry(THROTTLE, ARRAY, Throttled(own=own, ours=1, before=own).body()),)
    told = Replicas(name="chat", wanted=4, rate_per_s=2.0, jobs=arrays)
    none = dataclasses.replace(told, name="none", jobs=())
    for throttles in (seen.throttles, {}):  # Slurm need not tell what is booked
        seen, book = dataclasses.replace(seen, throttles=throttles), Book(booked)
        snap = dataclasses.replace(build.snapshot(seen), services=(told, none, none), booked=book)
        places = replicas_in(snap)
        assert book.reads == 1
        assert places is not None
        assert places.first.tolist() == [first > 0, second > 0]
        assert places.barred.tolist() == [not first, not second]
        assert places.running.tolist() == [max(1, first), max(1, second)]


def test_nobody_else_can_make_replicas(tmp_path: Path) -> None:
    """Not by the same name, alone or as another account; not by a job that is no array."""
    rate = tmp_path / "rate.csv"
    rate.write_text(f"{build.NOW_S},2\n", encoding="utf-8")
    texts = {
        1: JobText(label="1_[0-9]", name="chat", user="ann", account="ml"),
        2: JobText(label="2_[0-9]", name="chat", user="bob", account="ml"),
        3: JobText(label="3", name="chat", user="ann", account="ml"),
        4: JobText(label="4_0", name="chats", user="ann", account="ml"),
        5: JobText(label="5_0", name="chat", user="ann", account="other"),
    }
    seen = build.observed(
        [build.pending(j) for j in texts], texts={JobId(j): t for j, t in texts.items()}
    )
    log = logging_setup.logger()

    def jobs_of(**owner: str) -> tuple[JobId, ...]:
        count = ReplicaCount("chat", service(rate, **owner), log)
        know = Enricher(services=[count], **UNKNOWN)
        (told,) = know(build.snapshot(seen)).services
        return told.jobs

    assert jobs_of(account="ML") == (1,)
    assert jobs_of() == (1, 5)
    assert jobs_of(user="", account="ml") == (1, 2)


def test_the_last_count_stays_while_the_rate_cannot_be_had(tmp_path: Path) -> None:
    """Missing, wrong, or old: one warning; at a start those that run count, at a reload it does."""
    rate, said = tmp_path / "rate.csv", io.StringIO()
    logging_setup.configure(level="info", form="json", stream=said)
    entry = service(rate)
    snap = snap_of(0, 3, 5)
    log = logging_setup.logger()
    fresh = ReplicaCount("chat", entry, log)

    def look(count: ReplicaCount) -> Replicas:
        count.look(snap)
        thread = count._thread
        assert thread is not None
        thread.join(5)
        return count.look(snap)

    assert (look(fresh).wanted, look(fresh).rate_per_s) == (3, None)
    for text, expected in (
        (f"{build.NOW_S},2\n", 2.0),
        ("", 2.0),
        ("nan,nan\n", 2.0),
        (f"{build.NOW_S},-1\n", 2.0),
        (f"{build.NOW_S - 700},7\n", 2.0),
        (f"{build.NOW_S + 700},7\n", 2.0),
        (f"{build.NOW_S - 5},1\n{build.NOW_S},7\n", 7.0),
    ):
        rate.write_text(text, encoding="utf-8")
        look(fresh)
        told = look(fresh)
        assert told.rate_per_s is not None
        assert told.rate_per_s >= expected
        assert told.wanted == replicas_for(entry.level(), told.rate_per_s)
    assert said.getvalue().count("no rate of a service") == 2

    rate.unlink()
    reloaded = ReplicaCount("chat", service(rate, most_replicas=told.wanted - 1), log)
    Enricher(services=[reloaded], **UNKNOWN).go_on(Enricher(services=[fresh], **UNKNOWN))
    assert dataclasses.replace(look(reloaded), wanted=told.wanted) == told
    assert look(reloaded).wanted == told.wanted - 1


def test_a_rate_is_read_within_bounds(tmp_path: Path) -> None:
    """The end of a long file, a whole answer; neither a FIFO nor an answer without end."""
    answers = [b"epoch_s,requests_per_s\n5,1\n6,2.5"]
    with rate_server(answers) as url:
        assert read_rate(url) == ([5.0, 6.0], [1.0, 2.5])
        bad_answers = [b"", b"1,1\n" * 40_000, b"2,1\n1,1\n", b"\xff\xfe", b"1,1e7\n", b"1;1"]
        for bad in (*bad_answers, b"-1e300,1\n1,1\n"):
            answers[0] = bad
            with pytest.raises(ConfigError, match="rate"):
                read_rate(url)
    log = tmp_path / "log.csv"
    lines = [f"{k},{k % 7}" for k in range(100_000)]
    log.write_text("\n".join(lines), encoding="utf-8")
    times_s, rates = read_rate(str(log))
    assert (times_s[-1], rates[-1]) == (99_999.0, 99_999.0 % 7)
    assert np.diff(times_s).tolist() == [1.0] * (len(times_s) - 1)
    assert len(times_s) < 10_000
    fifo = tmp_path / "rate"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_rate(str(path))

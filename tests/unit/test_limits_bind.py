"""GPUs are taken back only for jobs that fit in what limits leave: the tools' words in.

Two nodes of four GPUs, each held by a job that gives way. Jobs 2 and 5, of ada in account ml and
QOS games, each wait for a node in the same poll: without limits both get one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from build import observed, pending, running, snapshot
from scripted_slurm import (
    CONDITIONS,
    CONFIG,
    ONE_NODE,
    PARTITION,
    VICTIM,
    WAITS,
    Tools,
    cycles,
    opened,
)
from squeue_records import answer, words

from slurm_dl.engine.preemption.slurm_refusals import LimitsLeft
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.limits import Quotas

NO_LIMITS = "cpu=N(0),mem=N(0),node=N(0),billing=N(0),gres/gpu=N(0)"
LIMITED = f"""\
    GrpJobs=N(0) GrpJobsAccrue=N(0) GrpSubmitJobs=N(0) GrpWall=N(0.00)
    GrpTRES={NO_LIMITS}
    GrpTRESMins={NO_LIMITS}
    GrpTRESRunMins={NO_LIMITS}
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
    MaxTRESPJ=
    MaxTRESPN=
    MaxTRESMinsPJ=
"""
OF_EACH = f"""\
    Account Limits
      ml
        MaxJobsPA=N(0) MaxJobsAccruePA=N(0) MaxSubmitJobsPA=N(2)
        MaxTRESPA={NO_LIMITS}
    User Limits
      1000
        MaxJobsPU=N(0) MaxJobsAccruePU=N(0) MaxSubmitJobsPU=N(2)
        MaxTRESPU={NO_LIMITS}
"""
ASSOCIATIONS = (
    ("root", "", ""),
    ("lab", "", "root(1)"),
    ("ml", "", "lab(2)"),
    ("ml", "ada(1000)", ""),
    ("ml", "eve(1001)", ""),
    ("lab", "eve(1001)", ""),
    ("other", "", "root(1)"),
    ("other", "bob(1002)", ""),
)
TEXT = (
    "Association Records\n\n"
    + "".join(
        f"ClusterName=c Account={account} UserName={user} Partition= Priority=0 ID=1\n"
        f"    ParentAccount={parent} Lft=1 DefAssoc=Yes\n{LIMITED}"
        for account, user, parent in ASSOCIATIONS
    )
    + "\nQOS Records\n\n"
    + "".join(f"QOS={name}(1)\n{LIMITED}{OF_EACH}" for name in ("games", "part", "other", "x"))
)
GAMES, ML, LAB, ADA = "QOS=games(", "Account=ml UserName= ", "Account=lab ", "UserName=ada("
ENFORCES = "associations,limits,qos"
ONE = VICTIM | ONE_NODE | {"QOS": "other", "Account": "other", "UserName": "bob"}
MINE = {"QOS": "games", "Account": "ml", "UserName": "ada"}
WHOLE = {"OverSubscribe": "NO", "tres-per-node": "gres:gpu:1"}
BOTH, FIRST, NONE = [(2,), (5,)], [(2,)], list[tuple[int, ...]]()


def told(*changes: tuple[str, str, str]) -> str:
    """What scontrol says, with limits: record, limit, and its value; what is used stays."""
    text = TEXT
    for record, limit, value in changes:
        at = text.index(record)
        text = text[:at] + re.sub(rf" {limit}=\S*", f" {limit}={value}", text[at:], count=1)
    return text


class ManyTools(Tools):
    """Tools that know four jobs and what each asks for."""

    def run(self, tool: str, *args: str) -> str:
        """What the tool prints."""
        if tool == "scontrol" and args[1] == "assoc_mgr" and self.told["assoc_mgr"] is None:
            self.calls["assoc_mgr"] += 1
            msg = "Access/permission denied"
            raise ClusterError(msg)
        if tool != "squeue":
            self.calls[args[1] if tool == "scontrol" else tool] += 1
            return super().run(tool, *args)
        own = self.told.get("jobs", {})
        rows = [
            ONE | words("JobID=1 JobArrayID=1 NodeList=n1") | own.get(1, {}),
            WAITS | ONE_NODE | MINE | own.get(2, {}),
            ONE | words("JobID=4 JobArrayID=4 NodeList=n2 StartTime=999001") | own.get(4, {}),
            WAITS | ONE_NODE | MINE | words("JobID=5 JobArrayID=5") | own.get(5, {}),
        ]
        if not args[-1].startswith("--format="):
            return answer(args, rows)
        short = "%c" not in args[-1]
        lines = []
        for row in rows:
            asks = CONDITIONS.replace("0 (null)", "0 " + row.get("licences", "(null)"))
            lines.append(f"{row['JobID']} {asks.partition(' ')[0] if short else asks}\n")
        return "".join(lines)


def tools(
    text: str | None = TEXT,
    enforces: str = ENFORCES,
    licences: str = "",
    jobs: Mapping[int, Mapping[str, str]] | None = None,
    qos: str = "N/A",
) -> ManyTools:
    """Tools of a Slurm that enforces limits."""
    gone = ("AccountingStorageType ", "AccountingStorageEnforce ")
    lines = [line for line in CONFIG.splitlines() if not line.startswith(gone)]
    lines += ["AccountingStorageType = accounting_storage/slurmdbd"]
    lines += [f"AccountingStorageEnforce = {enforces}"]
    return ManyTools(
        {
            "config": "\n".join(lines),
            "assoc_mgr": text,
            "lic": licences,
            "jobs": jobs or {},
            "partition": PARTITION.replace("QoS=N/A", f"QoS={qos}"),
        }
    )


def begun(text: str | None = TEXT, **of: Any) -> list[tuple[int, ...]]:  # noqa: ANN401
    """Beneficiaries of the hand-overs that the first poll begins."""
    return sorted(opened(cycles(tools(text, **of), acting=[True])[0]))


LIMITS = [
    (GAMES, "MaxTRESPU", "gres/gpu={}(0)", 8),
    (GAMES, "MaxTRESPA", "gres/gpu={}(0)", 8),
    (GAMES, "GrpTRES", "gres/gpu={}(0)", 8),
    (GAMES, "GrpTRES", "node={}(0)", 2),
    (GAMES, "GrpTRESRunMins", "gres/gpu={}(0)", 480),
    (GAMES, "GrpJobs", "{}(0)", 2),
    (GAMES, "MaxJobsPU", "{}(0)", 2),
    (GAMES, "MaxJobsPA", "{}(0)", 2),
    (ML, "GrpTRES", "cpu=N(0),gres/gpu={}(0)", 8),
    (LAB, "GrpTRES", "gres/gpu={}(0)", 8),
    (ADA, "GrpTRES", "gres/gpu={}(0)", 8),
    (ADA, "GrpJobs", "{}(0)", 2),
    (ADA, "MaxJobs", "{}(0)", 2),
]


@pytest.mark.parametrize(("record", "limit", "value", "most"), LIMITS)
def test_as_many_hand_overs_begin_as_a_limit_has_room_for(
    record: str, limit: str, value: str, most: int
) -> None:
    """One unit short of what both need, the second one stays shut."""
    assert begun(told((record, limit, value.format(most)))) == BOTH
    assert begun(told((record, limit, value.format(most - 1)))) == FIRST
    assert begun(told((record, limit, value.format(most - 1))), enforces="associations") == BOTH


@pytest.mark.parametrize(
    ("text", "of", "expected"),
    [
        pytest.param(told((GAMES, "MaxTRESPJ", "gres/gpu=3")), {}, NONE, id="MaxTRESPJ"),
        pytest.param(told((ADA, "MaxTRESPN", "gres/gpu=3")), {}, NONE, id="MaxTRESPN"),
        pytest.param(told((ADA, "MaxTRESPN", "gres/gpu=4")), {}, BOTH, id="MaxTRESPN fits"),
        pytest.param(told((ML, "GrpTRESMins", "gres/gpu=9(9)")), {}, NONE, id="minutes used up"),
        pytest.param(told((ML, "GrpTRESMins", "gres/gpu=9(8)")), {}, BOTH, id="minutes left"),
        pytest.param(
            told((ML, "GrpTRESMins", "gres/gpu=480(1)")), {"enforces": "safe"}, FIRST, id="safe"
        ),
        pytest.param(
            told((ML, "GrpTRESMins", "gres/gpu=481(1)")), {"enforces": "safe"}, BOTH, id="safe fits"
        ),
        pytest.param(
            told((GAMES, "GrpTRES", "gres/gpu=8(0)"), (ML, "GrpTRES", "gres/gpu=4(0)")),
            {},
            BOTH,
            id="a QOS limit comes instead of the account's",
        ),
        pytest.param(
            told((GAMES, "GrpTRES", "gres/gpu=4(0)"), ("QOS=part(", "GrpTRES", "gres/gpu=8(0)")),
            {"qos": "part"},
            BOTH,
            id="the partition's QOS comes first",
        ),
        pytest.param(
            told(("QOS=part(", "GrpTRES", "gres/gpu=7(0)")),
            {"qos": "part"},
            NONE,
            id="a limit of the partition, in which victims count too",
        ),
        pytest.param(
            told(("QOS=part(", "GrpTRES", "gres/gpu=8(0)")),
            {"qos": "part"},
            BOTH,
            id="a limit of the partition that fits",
        ),
        pytest.param(
            told((GAMES, "MaxTRESPU", "gres/gpu=4(0)")), {"jobs": {5: {"UserName": "eve"}}}, BOTH,
            id="another user",
        ),
        pytest.param(
            told((GAMES, "MaxTRESPU", "gres/gpu=7(0)")), {"jobs": {1: {**MINE, "Comment": ""}}},
            NONE,
            id="a running job counts, whatever the text says is used",
        ),
        pytest.param(
            told((GAMES, "MaxTRESPU", "gres/gpu=8(0)")), {"jobs": {1: MINE}}, BOTH,
            id="a victim of one's own gives back",
        ),
        pytest.param(
            told((GAMES, "MaxTRESPU", "gres/gpu=4(0)")), {"jobs": {4: MINE}}, FIRST,
            id="at the limit only one's own job gives way",
        ),
        pytest.param(
            told((GAMES, "MaxTRESPU", "gres/gpu=4(0)")), {"jobs": {2: WHOLE, 5: WHOLE}}, FIRST,
            id="exclusive jobs count as whole nodes",
        ),
        pytest.param(
            told((GAMES, "MaxWallPJ", "10")), {}, BOTH,
            id="a time limit that an operator has raised: else Slurm says so itself",
        ),
        pytest.param(
            TEXT.replace("Account=other UserName= ", "Account=my lab UserName= "), {}, BOTH,
            id="an account with a blank in its name",
        ),
        pytest.param(None, {}, FIRST, id="unread"),
        pytest.param(TEXT[:900], {}, FIRST, id="cut off"),
        pytest.param(None, {"enforces": "associations"}, BOTH, id="unread and not enforced"),
        pytest.param(
            None,
            {"jobs": {5: {"QOS": "x", "Account": "lab", "UserName": "eve"}}},
            BOTH,
            id="unread, of another user, account and QOS",
        ),
    ],
)  # fmt: skip
def test_the_limit_that_counts(
    text: str | None, of: Mapping[str, Any], expected: Sequence[tuple[int, ...]]
) -> None:
    """Each with its counterpart that fits, or that is not limited."""
    assert begun(text, **of) == expected


def test_at_the_limit_the_victim_is_the_own_job() -> None:
    """The other one could be stopped as well, and would be stopped in vain."""
    at_limit = tools(told((GAMES, "MaxTRESPU", "gres/gpu=4(0)")), jobs={4: MINE})
    plan = cycles(at_limit, acting=[True])[0].plan
    assert {v.run.job_id for h in handovers(plan) for v in h.victims} == {4}
    assert "QOS games: MaxTRESPU gres/gpu=4" in plan.notes[JobId(5)]


def handovers(plan: Any) -> list[Any]:  # noqa: ANN401
    return [action.handover for action in plan.actions if hasattr(action, "handover")]


LICENCES = "LicenseName=matlab\n    Total={} Used={} Free=1 Reserved={} Remote=no\n"


@pytest.mark.parametrize(
    ("text", "asks", "holds", "expected"),
    [
        (LICENCES.format(4, 0, 0), "matlab:2", "", BOTH),
        (LICENCES.format(3, 0, 0), "matlab:2", "", FIRST),
        (LICENCES.format(4, 0, 1), "matlab:2", "", FIRST),
        (LICENCES.format(5, 2, 0), "matlab:2", "", FIRST),
        (LICENCES.format(5, 0, 0), "matlab,matlab", "matlab:2", BOTH),
        (LICENCES.format(1, 0, 0), "matlab:2", "", NONE),
        (LICENCES.format(9, 0, 0), "matlab:1|matlab:2", "", NONE),
        (LICENCES.format(9, 0, 0), "matlab:1,ansys", "", NONE),
        (LICENCES.format(9, 0, 0).replace("=no", "=yes"), "matlab", "", NONE),
    ],
)
def test_licences_are_shared_like_limits(
    text: str, asks: str, holds: str, expected: Sequence[tuple[int, ...]]
) -> None:
    """Of this cluster's own; who asks for others, or for one of several, gets no GPUs back."""
    jobs = {2: {"licences": asks}, 5: {"licences": asks}}
    if holds:
        jobs[1] = {"licences": holds}
    assert begun(licences=text, jobs=jobs) == expected


def test_limits_are_read_once_a_minute_and_only_while_they_matter() -> None:
    """A poll in which nobody waits costs as many calls as without limits."""
    often = tools(told((GAMES, "GrpTRES", "gres/gpu=4(0)")))
    cycles(often, acting=[True] * 5)
    idle = tools(jobs={2: {"Reason": "JobHeldUser"}, 5: {"Reason": "JobHeldUser"}})
    cycles(idle, acting=[True] * 5)
    assert (often.calls["assoc_mgr"], idle.calls["assoc_mgr"]) == (1, 0)


def test_what_fits_is_what_a_count_of_all_jobs_allows() -> None:
    """Every order of opening: the sum of what runs and is planned never passes a limit."""
    rng = np.random.default_rng(7)
    for _ in range(200):
        units = {JobId(n): float(rng.integers(1, 5)) for n in range(1, 7)}
        used, most = units[JobId(1)] + units[JobId(2)], float(rng.integers(1, 20))
        quotas = Quotas(
            names=("q",),
            most=np.array([most]),
            used=np.array([used]),
            counts={job: ((0, n),) for job, n in units.items()},
        )
        jobs = [running(1), running(2), *map(pending, range(3, 7))]
        left = LimitsLeft(snapshot(observed(jobs, quotas=quotas)), ())
        held, owner = used, itertools.count()
        for row in rng.permutation([2, 3, 4, 5]).tolist():
            victims = tuple(rng.permutation([0, 1])[: rng.integers(0, 2)].tolist())
            given = sum(units[JobId(v + 1)] for v in victims)
            fits = held + units[JobId(row + 1)] - given <= most
            assert (left.why_not(row, victims) == "") == fits
            if fits and not victims:
                left.plan(next(owner), row)
                held += units[JobId(row + 1)]

"""Which jobs Slurm 22.05.8 left waiting after ``scontrol requeue``, by its association manager."""

from __future__ import annotations

import re

import pytest

from slurm_dl.model.ids import JobId
from slurm_dl.model.snapshot import JobText
from slurm_dl.slurm.read.associations import BarredCandidate, barred

NO_MINUTES = "cpu=N(0),mem=N(0),energy=N(0),node=N(0),billing=N(0),fs/disk=N(0),gres/gpu=N(0)"
ASSOCIATION = """\
ClusterName=c1 Account={} UserName={} Partition={} Priority=0 ID={}
    SharesRaw/Norm/Level/Factor=1/0.25/4/0.00
    UsageRaw/Norm/Efctv=0.00/1.00/0.00
    ParentAccount={} Lft=4 DefAssoc=Yes
    GrpJobs=N(0) GrpJobsAccrue=N(0)
    GrpSubmitJobs=N(0) GrpWall=N(0.00)
    GrpTRES=gres/gpu=8(8)
    GrpTRESMins={}
    GrpTRESRunMins=gres/gpu=1(7)
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
"""
QOS = """\
QOS={}({})
    UsageRaw=0.000000
    GrpJobs=N(0) GrpJobsAccrue=N(0) GrpSubmitJobs=N(0) GrpWall=N(0.00)
    GrpTRES=gres/gpu=8(8)
    GrpTRESMins={}
    GrpTRESRunMins=gres/gpu=1(7)
    Account Limits
        No Accounts
"""
RECORDS = (
    ("root", "", "", 1, ""),
    ("lab", "", "", 3, "root(1)"),
    ("ml", "", "", 4, "lab(3)"),
    ("ml", "games(5)", "", 5, ""),
    ("ml", "daemon(1)", "long", 8, ""),
)
TEXT = (
    "Current Association Manager state\n\nAssociation Records\n\n"
    + "".join(ASSOCIATION.format(*row, NO_MINUTES) for row in RECORDS)
    + "\nQOS Records\n\n"
    + "".join(QOS.format(name, n, NO_MINUTES) for n, name in enumerate(("normal", "q", "p"), 1))
)
GAMES, ML, LAB = "Account=ml UserName=games", "Account=ml UserName= ", "Account=lab UserName= "
Q, P = "QOS=q(", "QOS=p("
RUN, GRP_TRES = ("gres/gpu=1(7)", "gres/gpu=N({})"), ("gres/gpu=8(8)", "gres/gpu={}(8)")
MAX_WALL = ("MaxWallPJ=", "MaxWallPJ={}")
GPU, WALL = ("gres/gpu=N(0)", "gres/gpu={}"), ("GrpWall=N(0.00)", "GrpWall={}")


def told(*changes: tuple[str, tuple[str, str], str]) -> str:
    """The text with limits set: record, which limit, and its value with what is used."""
    text = TEXT
    for record, (old, new), value in changes:
        at = text.index(record)
        text = text[:at] + text[at:].replace(old, new.format(value), 1)
    return text


def without(start: str) -> str:
    """The text without one record."""
    return re.sub(rf"^{re.escape(start)}.*\n(?:    .*\n)*", "", TEXT, flags=re.MULTILINE)


def is_barred(text: str, word: str = "associations limits qos", **job: str) -> bool:
    """Whether a job of games in ml is, or one that differs: 4 GPUs, 10 minutes, 8 of them left."""
    one = JobId(7)
    of = {"user": "games", "account": "ml", "qos": "q", "partition": "gpu"} | job
    held, nested = of.pop("held", "cpu gres/gpu"), bool(of.pop("nested", ""))
    partitions = {"short": {"QoS": "p"}}
    partitions["gpu"] = dict(w.split("=") for w in of.pop("words", "").split())
    candidate = BarredCandidate(
        partition=of.pop("partition"),
        tres=dict.fromkeys(held.split(), 4.0),
        limit_min=10.0,
        left_min=8.0,
        text=JobText(label="7", **of),
    )
    return bool(
        barred(
            text,
            {one: candidate},
            enforced=frozenset(word.split()),
            partitions=partitions,
            nested=nested,
        )
    )


GONE = without("ClusterName=c1 Account=ml UserName=games")
SHORT = {"partition": "short"}


@pytest.mark.parametrize(
    ("text", "options", "named"),
    [
        (TEXT, {}, ""),
        (GONE, {}, "user games"),
        (GONE, {"word": "associations"}, "account ml"),
        (GONE, {"word": "nojobs"}, ""),
        (GONE, {"user": "5\x1b"}, r"5\x1b"),
        (TEXT, {"user": "5"}, ""),
        (TEXT, {"user": "daemon", "partition": "long"}, ""),
        (TEXT, {"user": "daemon"}, "association"),
        (without("QOS=q("), {"word": "qos", "qos": ""}, "QOS"),
        (without("QOS=q("), {"word": "qos"}, "QOS q"),
        (without("QOS=q("), {"word": "limits", "qos": ""}, ""),
        (told((ML, GPU, "8(8)")), {}, "account ml"),
        (told((ML, GPU, "8(8)")), {"word": "safe"}, "gres/gpu"),
        (told((ML, GPU, "8(8)")), {"word": "qos"}, ""),
        (told((ML, GPU, "8(7)")), {}, ""),
        (told((ML, GPU, "47(8)")), {}, ""),
        (told((ML, GPU, "47(8)")), {"word": "safe"}, "47 - 8 < 4 * 10"),
        (told((ML, GPU, "47(8)")), {"word": "all"}, "47 - 8 < 4 * 10"),
        (told((ML, GPU, "48(8)")), {"word": "safe"}, ""),
        (told((ML, GPU, "50(8)"), (ML, RUN, "35")), {"word": "safe"}, "3 of other jobs"),
        (told((ML, GPU, "51(8)"), (ML, RUN, "35")), {"word": "safe"}, ""),
        (told((GAMES, MAX_WALL, "9")), {}, "MaxWall"),
        (told((GAMES, MAX_WALL, "10")), {}, ""),
        (told((ML, MAX_WALL, "9")), {}, ""),
        (told((Q, GRP_TRES, "3")), {}, "GrpTRES"),
        (told((Q, GRP_TRES, "4")), {}, ""),
        (told((GAMES, MAX_WALL, " MaxTRESPJ=gres/gpu=3")), {}, "MaxTRES"),
        (told((GAMES, MAX_WALL, " MaxTRESMinsPJ=gres/gpu=39")), {}, "MaxTRESMins"),
        (told((GAMES, MAX_WALL, " MaxTRESPJ=cpu=3K,gres/gpu=4")), {}, ""),
        (told((GAMES, MAX_WALL, " MaxTRESMinsPJ=gres/gpu=40")), {}, ""),
        (TEXT, {"words": "AllowAccounts=root,other"}, "AllowAccounts"),
        (TEXT, {"words": "AllowAccounts=ml,x AllowQos=ALL DenyQos=p"}, ""),
        (TEXT, {"words": "AllowAccounts=lab"}, "AllowAccounts"),
        (TEXT, {"words": "AllowAccounts=lab", "nested": "yes"}, ""),
        (TEXT, {"words": "AllowAccounts=ALL DenyAccounts=ml"}, "DenyAccounts"),
        (TEXT, {"words": "AllowQos=p"}, "AllowQos"),
        (TEXT, {"words": "AllowQos=ALL DenyQos=q"}, "DenyQos"),
        (told((ML, GPU, "8(?)")), {}, ""),
        (told((ML, GPU, "0(0)")), {"held": "cpu"}, ""),
        (told((GAMES, GPU, "0(0)")), {}, "association"),
        (told((LAB, GPU, "1(2)")), {}, "account lab"),
        (told((LAB, WALL, "50(50.25)")), {"held": ""}, "GrpWall"),
        (told((Q, WALL, "5(6.00)")), {}, "QOS q"),
        (told((ML, GPU, "0(0)"), (Q, GPU, "9(0)")), {}, ""),
        (told((ML, GPU, "0(0)"), (P, GPU, "9(0)")), SHORT, ""),
        (told((Q, GPU, "0(0)"), (P, GPU, "9(0)")), SHORT, ""),
        (told((P, GPU, "0(0)")), SHORT, "QOS p"),
        (without("ClusterName=c1 Account=root"), {"user": "nobody"}, ""),
        (TEXT.replace("Account=lab", "Account=a b"), {"user": "nobody"}, "association"),
        (TEXT.replace("QOS=q(", "QOS=we(ird) one("), {"qos": "q"}, "QOS"),
        (TEXT.replace("UserName= Partition", "Partition"), {"user": "nobody"}, ""),
        (TEXT[: TEXT.index("\nQOS Records")], {"user": "nobody"}, ""),
        ("slurm_load_assoc_mgr_info error: Unable to contact slurm controller", {}, ""),
        ("", {}, ""),
    ],
)
def test_a_job_is_barred_as_slurm_left_it_waiting(
    text: str, options: dict[str, str], named: str
) -> None:
    """By what is named; empty: nothing does, or it is not known."""
    assert is_barred(text, **options) == bool(named)

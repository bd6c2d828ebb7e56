"""Records as squeue and sinfo print them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from slurm_dl.slurm.read.record_parser import JOB_FIELDS

NONCE = "xnonce"


def words(text: str) -> dict[str, str]:
    """Fields from ``Name=value`` separated by blanks."""
    return {name: value for name, _, value in (word.partition("=") for word in text.split())}


RUNNING = dict.fromkeys((*JOB_FIELDS, "MinMemory"), "N/A") | words(
    "State=RUNNING Reason=None Partition=gpu UserID=1000 UserName=ada NumNodes=1 NumTasks=1 "
    "Sockets=* NumCPUs=8 tres-alloc=cpu=8,mem=8G,node=1 tres-per-node=gres:gpu:2 NodeList=n1 "
    "SubmitTime=100 StartTime=200 EndTime=1000 EligibleTime=100 TimeLimit=10:00 RestartCnt=0 "
    "Requeue=1 BatchFlag=1 OverSubscribe=OK PriorityLong=5 Reservation=(null) Name=job "
    "Comment=(null)"
)
"""A job of two GPUs, but for its ids."""


def records(fields: Sequence[str], rows: Iterable[Mapping[str, str]], nonce: str = NONCE) -> str:
    """The text that is printed of *rows*."""
    return "".join(f"{nonce}f".join(row[name] for name in fields) + f"{nonce}r\n" for row in rows)


def answer(args: Sequence[str], rows: Iterable[Mapping[str, str]]) -> str:
    """The same for who asks with *args*, of which ``--Format`` is the last."""
    asked = args[-1].removeprefix("--Format=").split(",")
    nonce = asked[-1].partition(":")[2].removesuffix("r")
    return records([word.partition(":")[0] for word in asked], rows, nonce)

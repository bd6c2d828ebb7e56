"""What users write into their jobs never becomes a part of somebody else's record.

Queues are rendered as squeue, scontrol and sacct print them: names, comments and work directories
raw, whatever bytes are in them. The same queue with harmless words is the truth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from squeue_records import RUNNING, records, words

from slurm_dl.model.contract import NO_CLAIM
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.slurm.accounting.past_jobs import past_of, run_of
from slurm_dl.slurm.accounting.query import NAMED_FIELDS, parse
from slurm_dl.slurm.controller import SiteConfig
from slurm_dl.slurm.read import gpu_holdings
from slurm_dl.slurm.read.comment_claims import ClaimReader
from slurm_dl.slurm.read.gpu_holdings import Holdings, devices_in, splits_in
from slurm_dl.slurm.read.grammar import MOST_NODES, expand, names_in
from slurm_dl.slurm.read.job_reader import JobReader
from slurm_dl.slurm.read.job_table import JobTable
from slurm_dl.slurm.read.node_reader import NODE_FIELDS, ClusterReading, read_nodes, site_of
from slurm_dl.slurm.read.record_parser import JOB_FIELDS, new_nonce, output_format
from slurm_dl.slurm.releases import Release
from slurm_dl.text import escaped

OPTED_IN = '{"slurm_dl":{"v":1,"sig":"USR1","grace_s":60,"ack":0}}'
OTHERS_NONCE = "xabcdefghi"
"""Of the shape of ours, from an earlier call."""

PLAIN = RUNNING | words(
    "NumNodes=2 tres-alloc=cpu=8,mem=8G,node=2 tres-per-node=N/A tres-per-job=gres:gpu:4 "
    "NodeList=n[1-2]"
)


def _forged(nonce: str, job_id: int) -> str:
    fields = PLAIN | {"JobID": str(job_id), "JobArrayID": str(job_id), "UserID": "0"}
    fields |= {"Name": "forged", "Comment": OPTED_IN}
    return records(JOB_FIELDS, [fields], nonce)


PIECES = st.sampled_from(
    [
        *("\n", "\r", "|", ",", "=", " ", "\t", "\0", "\x1b[2J", "\x1b]0;x\x07"),
        *("\u202e", "\u2028", "\u2066"),
        *(f"{OTHERS_NONCE}f", f"{OTHERS_NONCE}r\n", "f", "r\n", "x", "\\", "%s", "🦥", "\x9b31m"),
        *("{", '"slurm_dl"', OPTED_IN, "JobId=2 ", "\nJobId=2 JobName=x ", "\nJobId=3 "),
        "Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=gpu:a100:2(IDX:0-1) ",
        "Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:4(IDX:0-3) Nodes=n2 CPU_IDs=0 Mem=0 GRES=gpu:0 ",
        "Nodes=n[0-999999999] CPU_IDs=0 Mem=0 GRES=gpu:1 ",
        "\n2|bob|lab|100|200|300|COMPLETED|100|gres/gpu=2|gres/gpu=2|x\n",
        _forged(OTHERS_NONCE, 2),
        "a" * 10_240,
    ]
)
RAW = st.lists(PIECES.map(lambda text: text.encode()) | st.binary(max_size=12), max_size=6).map(
    b"".join
)
TEXT = RAW.map(lambda raw: raw.decode("utf-8", errors="replace"))
"""As the project decodes what the tools say."""

HOSTILE = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5)
"""Name and comment of each job."""


def _site() -> ClusterReading:
    node = {"StateComplete": "mixed", "Partition": "gpu*", "CPUs": "16", "Memory": "1000"}
    rows = [node | {"NodeList": n, "Gres": "gpu:4", "features_act": ""} for n in ("n1", "n2")]
    return site_of(
        read_nodes(records(NODE_FIELDS, rows, "xn"), "xn"),
        topology="",
        reservations=(),
        config=SiteConfig(release=Release(22, 5, 8), tracks_memory=True),
        type_row={},
    )


SITE = _site()


def _queue(words: Sequence[tuple[str, str]], nonce: str) -> str:
    """Job 1 and so on of users 1001 and so on, each with its name and comment."""
    ends = dict(zip(JOB_FIELDS, output_format(JOB_FIELDS, nonce).split(","), strict=True))
    text = ""
    for number, (name, comment) in enumerate(words, start=1):
        same = dict.fromkeys(("JobID", "JobArrayID", "RestartCnt"), str(number))
        user = {"UserID": str(1000 + number), "UserName": f"user{number}"}
        fields = PLAIN | same | user | {"Name": name, "Comment": comment}
        text += "".join(fields[n] + ends[n].removeprefix(f"{n}:") for n in JOB_FIELDS) + "\n"
    return text


def _read(words: Sequence[tuple[str, str]]) -> JobTable:
    nonce = new_nonce()
    reader = JobReader(ClaimReader(max_grace_s=600))
    return reader.read(_queue(words, nonce), nonce, SITE, now_s=500.0)


COLUMNS = [
    f.name for f in dataclasses.fields(JobTable) if f.name not in {"texts", "claims", "unreadable"}
]


@settings(max_examples=60, deadline=None)
@given(HOSTILE)
@example([(_forged(OTHERS_NONCE, 2), OPTED_IN), ("b", "")])
@example([("a\r\n\x1b[2J", "x" * 10_240), (f"{OTHERS_NONCE}r\n{OTHERS_NONCE}f", "{" * 999)])
def test_each_record_of_squeue_is_its_own_jobs(words: list[tuple[str, str]]) -> None:
    """Field by field as with harmless words; a name and a comment are those of their own job."""
    found, true = _read(words), _read([("job", "")] * len(words))

    assert found.unreadable == 0
    for name in COLUMNS:
        assert getattr(found, name) == getattr(true, name), name
    claims = ClaimReader(max_grace_s=600)
    for number, (name, comment) in enumerate(words, start=1):
        text = found.texts[JobId(number)]
        assert text.name == escaped(name)
        assert dataclasses.replace(text, name="job") == true.texts[JobId(number)]
        assert found.claims.get(JobId(number), NO_CLAIM) == claims.read(comment)


@settings(max_examples=60, deadline=None)
@given(HOSTILE, st.data())
def test_a_queue_that_was_cut_or_damaged_gives_whole_records_or_none(
    words: list[tuple[str, str]], data: st.DataObject
) -> None:
    """A separator that is lost takes its records out, and they are counted."""
    nonce = new_nonce()
    text, n = _queue(words, nonce), len(words)
    kind = data.draw(st.sampled_from(["f", "r\n"]))
    separators = [i for i in range(len(text)) if text.startswith(f"{nonce}{kind}", i)]
    at = data.draw(st.sampled_from(separators))
    damaged = text[:at] + text[at + len(nonce) + 1 :]
    true = _read(words)
    try:
        found = JobReader(ClaimReader(max_grace_s=600)).read(damaged, nonce, SITE, now_s=500.0)
    except ClusterError:
        return  # cut in the middle, or nothing is left of it

    # Without its end a record runs into the next one, and both are gone.
    assert len(found.job_id) == n - (2 if text[at + len(nonce)] == "r" else 1)
    assert found.unreadable == 1
    for row, job_id in enumerate(found.job_id):
        for name in COLUMNS:
            column = getattr(true, name)
            if isinstance(column, list):
                assert getattr(found, name)[row] == column[job_id - 1], name
        assert found.texts[JobId(job_id)] == true.texts[JobId(job_id)]
        assert found.claims.get(JobId(job_id)) == true.claims.get(JobId(job_id))


HONEST = ("honest", "/home/honest")
SPLIT = "Nodes=n1 CPU_IDs=0-1 Mem=0 GRES=gpu:3(IDX:0-2) Nodes=n2 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:3) "
HONEST_SPLIT = "Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:4(IDX:0-3) Nodes=n2 CPU_IDs=0 Mem=0 GRES= "
OTHERS_SPLIT = (
    "JobName=x Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0) "
    "Nodes=n2 CPU_IDs=0 Mem=0 GRES=gpu:3(IDX:0-2) "
)
"""It adds up for every job here, and is that of none."""


def _details(words: Sequence[tuple[str, str]]) -> str:
    """``scontrol show job -d -o``; all have 4 GPUs, honest jobs on other nodes than the rest."""
    return "".join(
        f"JobId={number} JobName={name} UserId=user{number}({1000 + number}) JobState=RUNNING "
        f"NodeList=n[1-2] JOB_GRES=gpu:4 {HONEST_SPLIT if name == 'honest' else SPLIT}"
        f"MinCPUsNode=1 Command=/a "
        f"WorkDir={comment} Comment={comment} Power=\n"
        for number, (name, comment) in enumerate(words, start=1)
    )


@settings(max_examples=60, deadline=None)
@given(HOSTILE)
@example([(f"\nJobId=1 {OTHERS_SPLIT}", ""), ("b", "")])
@example([(f"\nJobId=4 {OTHERS_SPLIT}", ""), ("b", "")])
@example([("Nodes=n[0-999999999] CPU_IDs=0 Mem=0 GRES=gpu:1 ", ""), ("b", "")])
def test_details_of_a_job_come_from_its_own_line_or_not_at_all(
    words: list[tuple[str, str]],
) -> None:
    """A job with a harmless name has its own split and devices, or counts as split evenly."""
    words = [HONEST, *words, HONEST]
    detail = _details(words)
    table = _read([("job", "")] * len(words))
    rows = list(range(len(words)))
    # One stands before those who lie, one behind them.
    honest = (1, len(words))

    for job_id in honest:
        told = splits_in(detail, honest).get(job_id)
        assert told is None or {n: g.gpus for n, g in told.items()} == {"n1": 4.0, "n2": 0.0}
        assert devices_in(detail, honest).get(job_id) in ({"n1": (0, 1, 2, 3), "n2": ()}, None)
    learnt = Holdings()
    learnt.learn(splits_in(detail, table.job_id), table, rows, SITE)
    learnt.correct(table)
    held = learnt.allocations(table, SITE)
    for row in rows:
        # Whoever lies about his own job makes it no smaller, and no larger than his own nodes.
        mine = held.gpus[held.job == row]
        assert mine.sum() == table.gpus[row]
        assert mine.sum() >= 4
        assert mine.max() <= 4
        assert sorted(held.node[held.job == row].tolist()) == [0, 1]
    for job_id in honest:
        assert held.gpus[held.job == job_id - 1].tolist() in ([4.0, 0.0], [2.0, 2.0])


BOMB = "Nodes=n[0-99999] CPU_IDs= Mem=0 GRES= "
"""In a name: one short line that stands for as many nodes as a list may have."""


@pytest.mark.parametrize(
    "bomb", [BOMB, f"Nodes=n[{','.join(['0-999'] * 100)}] CPU_IDs= Mem=0 GRES= "]
)
def test_lists_of_nodes_in_names_cost_no_more_than_one_that_is_true(
    monkeypatch: pytest.MonkeyPatch, bomb: str
) -> None:
    """Neither many in one name, nor the same nodes again and again, nor those of other jobs."""
    made = 0

    def counted(nodes: str) -> tuple[str, ...]:
        nonlocal made
        made += names_in(nodes)
        return expand(nodes)

    monkeypatch.setattr(gpu_holdings, "expand", counted)
    detail = _details([HONEST, *[(bomb * 10, bomb * 10)] * 50])

    told = splits_in(detail, {1, 7})[1] or {}
    assert {n: g.gpus for n, g in told.items()} == {"n1": 4.0, "n2": 0.0}
    assert made <= MOST_NODES + 2
    assert splits_in(detail, {7})[7] is None, "what remains of it must not be taken for the truth"


def test_a_long_gres_is_read_once_for_all_of_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name may give one to a hundred thousand nodes."""
    asked: list[str] = []
    for module, name in ((gpu_holdings, "parse_gres"), (gpu_holdings, "_indices")):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda gres, of=real: asked.append(gres) or of(gres))
    detail = _details([("Nodes=n[0-9999] CPU_IDs= Mem=0 GRES=gpu:1(IDX:0-3) ", "")])

    assert len(splits_in(detail, {1})[1] or ()) == 10_000
    assert len(devices_in(detail, {1})[1] or ()) == 10_000
    assert len(asked) <= 2 * 3


@settings(max_examples=60, deadline=None)
@given(HOSTILE)
def test_each_run_of_sacct_is_its_own_jobs(words: list[tuple[str, str]]) -> None:
    """Names with separators and line breaks change nothing but the name of their own job."""
    nonce = new_nonce()
    fixed = {"Account": "lab", "Submit": "100", "Start": "200", "End": "300"}
    fixed |= {"State": "COMPLETED", "ElapsedRaw": "100", "ReqTRES": ""}
    text = ""
    for number, (name, comment) in enumerate(words, start=1):
        own = {"JobName": name, "JobID": str(number), "User": f"user{number}", "Comment": comment}
        fields = {**fixed, **own, "AllocTRES": f"gres/gpu={number}"}
        text += nonce.join(fields[n] for n in NAMED_FIELDS) + f"{nonce}\n"

    found, unreadable = parse(text, NAMED_FIELDS, run_of, nonce=nonce)
    runs = [run for run in found if run is not None]

    assert unreadable == 0
    assert [(r.job, r.user, r.gpus, r.name) for r in runs] == [
        (str(n), f"user{n}", float(n), name[:1024]) for n, (name, _) in enumerate(words, start=1)
    ]
    told = past_of(runs)
    assert np.array_equal(np.sort(told.gpus), np.arange(1.0, len(words) + 1))


@given(TEXT)
def test_what_is_shown_of_a_name_is_one_line_without_controls(text: str) -> None:
    """Nothing in it can move a cursor, set a title, or turn the direction of what follows."""
    shown = escaped(text)

    assert len(shown.splitlines()) <= 1
    assert not any(c < " " or "\x7f" <= c <= "\x9f" or c in "\u202e\u2028\u2066" for c in shown)

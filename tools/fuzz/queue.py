"""What squeue, sprio and ``scontrol show job`` say of jobs, in which users write."""

from __future__ import annotations

import re

from slurm_dl.model.errors import ClusterError
from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import Trim
from slurm_dl.slurm.read.comment_claims import ClaimReader
from slurm_dl.slurm.read.conditions import ConditionReader
from slurm_dl.slurm.read.gpu_holdings import Holdings, Shares, devices_in, splits_in
from slurm_dl.slurm.read.grammar import address, one_spelling, tasks_in, tasks_of
from slurm_dl.slurm.read.job_reader import JobReader
from slurm_dl.slurm.read.node_choices import NodeChoices
from slurm_dl.slurm.read.queue_reader import whole_labels
from slurm_dl.slurm.read.record_parser import JOB_FIELDS
from slurm_dl.slurm.read.tres import job_request, parse_tres
from slurm_dl.slurm.read.vocabulary import bounded_epoch_s, held, job_state, limit_s
from slurm_dl.slurm.releases import Release
from slurm_dl.slurm.tool_runner import last_line
from slurm_dl.slurm.write.current_job import job_now
from slurm_dl.slurm.write.release_all import SIZE_FIELDS, release_all, set_by_hand, site_factors
from slurm_dl.slurm.write.request_changes import REQUEST_FIELDS, change_request, parts_of
from tools.fuzz.said import NONCE, SaidSlurm, record, site
from tools.fuzz.target import Target, text

_JOB = {
    "JobID": "7",
    "JobArrayID": "7",
    "State": "RUNNING",
    "Reason": "None",
    "Partition": "gpu",
    "UserID": "1000",
    "UserName": "ada",
    "NumNodes": "1",
    "NumTasks": "1",
    "Sockets": "*",
    "NumCPUs": "8",
    "tres-alloc": "cpu=8,mem=8G,node=1",
    "tres-per-node": "gres:gpu:2",
    "NodeList": "n1",
    "SubmitTime": "100",
    "StartTime": "200",
    "EndTime": "1000",
    "EligibleTime": "100",
    "TimeLimit": "1-10:00:00",
    "RestartCnt": "0",
    "Requeue": "1",
    "BatchFlag": "1",
    "OverSubscribe": "OK",
    "PriorityLong": "5",
    "Reservation": "(null)",
    "Name": "job",
    "Comment": '{"slurm_dl":{"v":1,"sig":"USR1"}}',
}
_PENDING = _JOB | {
    "JobID": "8",
    "JobArrayID": "8_[1-9:2,12%4]",
    "State": "PENDING",
    "Reason": "Dependency",
    "Partition": "gpu,other",
    "NodeList": "",
    "ReqNodes": "n[1-2]",
    "Feature": "ib&a100",
    "tres-per-job": "gres:gpu:6",
    "tres-alloc": "cpu=8,mem=62.5G,gres/gpu=4,gres/gpu:a100=4,gres/shard=2",
}
_MANY = 100_000
_DETAIL = (
    b"JobId=7 JobName=a Nodes=n1 CPU_IDs=0-1 Mem=0 GRES=gpu:a100:2(IDX:0-1)  Nodes=n2 CPU_IDs=0 "
    b"Mem=10 GRES=shard:1(0/4,1/4)\nJobId=8 JobName=b\n"
)


def _queue(data: bytes) -> object:
    reader = JobReader(ClaimReader(max_grace_s=600))
    for release in (Release(22, 5, 8), Release(26, 5, 5)):
        at = site(release)
        table = reader.read(text(data), NONCE, at, now_s=500.0)
        Holdings().allocations(table, at)
        NodeChoices(at).of(table, ConditionReader(SaidSlurm({})))
    return table


def _detail(data: bytes) -> object:
    said = text(data)
    devices, splits = devices_in(said, {7}), splits_in(said, {7})
    at = site()
    table = JobReader(ClaimReader(max_grace_s=600)).read(
        record(JOB_FIELDS, _JOB | {"tres-per-node": "gres:shard:1"}).decode(),
        NONCE,
        at,
        now_s=500.0,
    )
    holdings = Holdings()
    holdings.learn(splits, table, [0], at)
    shares = Shares(SaidSlurm({"scontrol": said}))
    shares.learn(table)
    return devices, holdings.allocations(table, at), shares.gpus(table, at)


def _labels(data: bytes) -> object:
    first, _, folded = text(data).partition("\n")
    folded = f"7{NONCE}f{folded}{NONCE}r\n"
    return whole_labels(SaidSlurm({"squeue": folded}), {JobId(7): first}, {JobId(7): first})


def _label(data: bytes) -> object:
    label = text(data)
    if tasks_in(label) > _MANY:
        return None  # Slurm has arrays of millions, and they take their time.
    return address(label), one_spelling(label), tasks_of(label)


def _words(data: bytes) -> object:
    said = text(data)
    held(said)
    for read in (job_state, limit_s, bounded_epoch_s):
        try:
            read(said)
        except ValueError:
            continue
    return None


def _tres(data: bytes) -> object:
    said = text(data)
    parse_tres(said)
    return job_request(
        said, per_node=said, per_job="", per_task=said, per_socket=said, nodes=2, tasks=4, sockets=1
    )


def _release_all(data: bytes) -> object:
    squeue, _, rest = text(data).partition("\x1c")
    sprio, _, rest = rest.partition("\x1c")
    excluded, _, scontrol = rest.partition("\x1c")
    said = {"squeue": squeue, "squeue -o": excluded, "sprio": sprio, "scontrol": scontrol}
    slurm = SaidSlurm(said)
    return list(release_all(slurm, ["gpu"], within="normal"))


def _conditions(data: bytes) -> object:
    table = JobReader(ClaimReader(max_grace_s=600)).read(
        record(JOB_FIELDS, _PENDING).decode()
        + record(JOB_FIELDS, _PENDING | {"JobID": "9", "JobArrayID": "9"}).decode(),
        NONCE,
        site(),
        now_s=500.0,
    )
    conditions = ConditionReader(SaidSlurm({"squeue": text(data)}))
    conditions.learn(table)
    return NodeChoices(site()).of(table, conditions)


def _trim(data: bytes) -> None:
    cut = Trim(job_id=JobId(7), cpus=2, mem_mb=100, why="")
    change_request(SaidSlurm({"squeue": text(data)}), cut)


def _claim(data: bytes) -> object:
    claim = ClaimReader(max_grace_s=600).read(text(data))
    contract = claim.contract
    assert contract is None or 0 < contract.grace_s <= 600  # noqa: S101, PLR2004
    assert claim.model is None or re.fullmatch("[!-~]{1,64}", claim.model)  # noqa: S101
    return claim


_NOW = (
    *("JobID", "JobArrayID", "State", "StartTime", "RestartCnt", "Requeue", "Reservation"),
    "tres-per-job",
    "Comment",
)
_RELEASED = (
    *("JobID", "JobArrayID", "State", "Partition", "Reservation", "QOS", "SubmitTime"),
    *SIZE_FIELDS,
)

TARGETS = (
    Target(
        name="squeue",
        parse=_queue,
        own=(ClusterError,),
        source="squeue: names, comments and work directories of all users",
        parser="slurm.read.job_reader.JobReader.read",
        seeds=(
            record(JOB_FIELDS, _JOB),
            record(JOB_FIELDS, _PENDING) + record(JOB_FIELDS, _JOB | {"HetJobID": "7"}),
        ),
    ),
    Target(
        name="comment",
        parse=_claim,
        source="comments of jobs, which their owners write",
        parser="slurm.read.comment_claims.ClaimReader.read",
        seeds=(
            (
                b'{"slurm_dl": {"v": 1, "sig": "USR1", "to": "batch", "grace_s": 120, '
                b'"by": "daemon", "model": "resnet50", '
                b'"ack": 3, "nodes": 4, "rate": 7.5, "progress": 0.25, '
                b'"due": 100, "values": [[100, 10], [200, 2.5]], '
                b'"cpus": 8, "mem_mb": 32000, "cpus_per_gpu": 2, "mem_mb_per_gpu": 10}, "x": [1]}'
            ),
            b'{"slurm_dl":{"sig":"TERM","to":"full","by":"job","grace_s":1e300}}',
        ),
    ),
    Target(
        name="job-detail",
        parse=_detail,
        source="scontrol show job -d: names and comments are printed raw into it",
        parser="slurm.read.gpu_holdings.splits_in, devices_in",
        seeds=(_DETAIL, _DETAIL.replace(b"gpu:a100:2(IDX:0-1)", b"shard:1(IDX:0)")),
    ),
    Target(
        name="job-now",
        parse=lambda data: job_now(SaidSlurm({"squeue": text(data)}), JobId(7)),
        own=(ClusterError,),
        source="squeue of one job, before an action on it",
        parser="slurm.write.current_job.job_now",
        seeds=(
            record(_NOW, _JOB),
            record(_NOW, _PENDING | {"JobID": "7", "JobArrayID": "7_[1-9:2]"}),
        ),
    ),
    Target(
        name="trim",
        parse=_trim,
        own=(ClusterError,),
        source="squeue of one job, before its CPUs are cut",
        parser="slurm.write.request_changes.change_request",
        seeds=(record(REQUEST_FIELDS, _JOB),),
    ),
    Target(
        name="release-all",
        parse=_release_all,
        own=(ClusterError,),
        source="squeue, sprio and scontrol, for dlctl release-all",
        parser="slurm.write.release_all.release_all",
        seeds=(
            record(_RELEASED, _JOB)
            + record(_RELEASED, _PENDING | {"JobArrayID": "8_[1-9,12%4]"})
            + b"\x1c7 100\n8 0\n\x1c8 n1,n[1-2] 1 0 * * * N/A 0 (null)\n"
            b"\x1cReservationName=slurm_dl_1 StartTime=1 EndTime=2 Duration=1 Nodes=n1 NodeCnt=1 "
            b"State=ACTIVE\n",
        ),
    ),
    Target(
        name="sprio",
        parse=lambda data: [
            read(SaidSlurm({"sprio": text(data)}))
            for read in (lambda slurm: set_by_hand(slurm, ()), site_factors)
        ],
        own=(ClusterError,),
        source="sprio",
        parser="slurm.write.release_all.site_factors, set_by_hand",
        seeds=(b"7 100\n8 -5\n", b"7 5.00000000000000\n8 0.00000000023283\n"),
    ),
    Target(
        name="conditions",
        parse=_conditions,
        own=(),
        source="squeue -o: what owners ask of nodes",
        parser="slurm.read.conditions.ConditionReader.learn",
        seeds=(b"8 n[1-2] 1 0 * * * N/A 0 (null)\n9 (null) 8 500M 2 * 1 2 1 a:2\n",),
    ),
    Target(
        name="exc-node-list",
        parse=lambda data: parts_of(text(data)),
        own=(ClusterError,),
        source="ExcNodeList in scontrol show job",
        parser="slurm.write.request_changes.parts_of",
        seeds=(b"n1,n[1-3],n7,n7", b"n[1-2]", b"(null)"),
    ),
    Target(
        name="array-folded",
        parse=_labels,
        own=(ClusterError,),
        source="squeue: labels of arrays",
        parser="slurm.read.queue_reader.whole_labels",
        seeds=(b"7_[0-18:2]\n7_[0-20:2]", b"7_[1,3]\n7_[1-5:2%2]"),
    ),
    Target(
        name="array-label",
        parse=_label,
        own=(ValueError,),
        source="squeue: labels of arrays",
        parser="slurm.read.grammar.address, one_spelling, tasks_of",
        seeds=(b"7_[0-20:2,30-33%4]", b"7_3", b"7+1", b"7"),
    ),
    Target(
        name="slurm-words",
        parse=_words,
        source="single words of Slurm's: states, reasons, times, limits",
        parser="slurm.read.vocabulary",
        seeds=(b"RUNNING", b"1-10:00:00", b"2026-01-02T03:04:05", b"Dependency(afterok:1)", b"17"),
    ),
    Target(
        name="tres",
        parse=_tres,
        source="TRES and GRES strings",
        parser="slurm.read.tres.job_request",
        seeds=(
            b"cpu=8,mem=62.50G,node=2,billing=8,gres/gpu=4,gres/gpu:a100=4",
            b"gres:gpu:a100:4,gres:shard:2",
            b"gpu:a100:2(IDX:0-1),shard:8(S:0),mps:2K",
        ),
    ),
    Target(
        name="tool-error",
        parse=lambda data: last_line(text(data)),
        source="error messages of Slurm's tools",
        parser="slurm.tool_runner.last_line",
        seeds=(b"slurm_update error: \x1b[2JInvalid job id specified\n\n",),
    ),
)

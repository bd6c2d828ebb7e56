"""A varied queue: what is submitted, in sbatch's words, and what any backend must report of it.

All of it stands in one cluster at the same time: six nodes of four GPUs, see `CLUSTER`. The same
list is what `tests/data/record.py` records of a release, what a live Slurm is held to through each
of its readers, and, as far as it can, the cluster in memory.

A record's expectation names fields of `contract.described`; what is not named is not compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from slurm_dl.sandbox import PartitionSpec, SandboxSpec
from slurm_dl.sandbox.spec import SandboxNodes

Record = dict[str, Any]

SHARDS_PER_GPU: Final = 4
CLUSTER: Final = SandboxSpec(
    groups=tuple(
        SandboxNodes(nodes=2, shards=4 * SHARDS_PER_GPU, gres=gres, options=options)
        for gres, options in (
            (("nvme:4",), ("TmpDisk=4000",)),
            (("nvme:1", "fpga:a:1", "fpga:b:2"), ("TmpDisk=1000",)),
            ((), ("CoreSpecCount=2", "MemSpecLimit=14000")),
        )
    ),
    # Requeued jobs stay held, and what ignores SIGTERM stays COMPLETING, until all is looked at.
    cred_expire_s=600,
    kill_wait_s=600,
    slurm_conf_extra=(
        *("SelectTypeParameters=CR_Core_Memory", "DefMemPerCPU=1000"),
        *("Licenses=matlab:4", "AllowSpecResourcesUsage=YES"),
    ),
    partitions=(
        PartitionSpec("gpu"),
        PartitionSpec("debug", nodes="n[1-2]", options=("MaxTime=60",)),
    ),
)

SLEEP: Final = "#!/bin/sh\nsleep 3600\n"
STUBBORN: Final = (
    '#!/bin/sh\ntrap "" TERM\n: >"$SLURM_SUBMIT_DIR/deaf-$SLURM_JOB_ID"\n'
    'until [ -e "$SLURM_SUBMIT_DIR/stop" ]; do sleep 0.5; done\n'
)
"""Says that it ignores SIGTERM, and does until there is a file "stop" in the submit directory."""

ONCE_DEAF: Final = ("sh", "-c", 'until [ -e "deaf-$0" ]; do sleep 0.1; done', "{id}")
"""Slurm says RUNNING before the script has begun."""

RUNNING, PENDING = "RUNNING", "PENDING"
FAKE: Final = "77777{0}f77777{0}fRUNNING{0}r\n99999|99999|RUNNING|".format("xrecorded9")
"""A record forged with the separators of another call, and one with bars."""

_NO_ARRAYS: Final = "the cluster in memory has no arrays"
_NO_TEXT: Final = "the cluster in memory takes no names and comments"
_NO_FEATURES: Final = "the cluster in memory has no features"
_ONE_PARTITION: Final = "the cluster in memory has one partition"
_EVEN: Final = "the cluster in memory gives the same number of whole GPUs on each node"
_SHARDS: Final = "the cluster in memory has no shards"
_NO_QOS: Final = "the cluster in memory is not told the QOS by option"
_NO_CPUS: Final = "the cluster in memory counts no CPUs and no memory"
_NO_GRES: Final = "the cluster in memory has GPUs only"
_AT_ONCE: Final = "runs in memory end at once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One submission.

    Attributes:
        options: Options of sbatch; ``{name}`` is the id of the case of that name.
        records: What is expected of each of its records, by the end of the record's label.
        script: What the job does; None leaves that to the options.
        tool: ``sbatch``, or ``salloc`` for an allocation without a job script.
        first: Commands before it is submitted.
        then: Commands once it is as expected with *settled*; ``{id}`` is its id.
        settled: Slurm's state that *then* waits for; empty for none.
        since: The first release that knows its options.
        not_in_memory: Why the cluster in memory cannot have it; empty if it can.
    """

    options: tuple[str, ...]
    records: dict[str, Record]
    script: str | None = SLEEP
    tool: str = "sbatch"
    first: tuple[tuple[str, ...], ...] = ()
    then: tuple[tuple[str, ...], ...] = ()
    settled: str = ""
    since: tuple[int, int] = (22, 5)
    not_in_memory: str = ""


def _in(
    state: str,
    *options: str,
    because: str = "",
    since: tuple[int, int] = (22, 5),
    **record: Any,  # noqa: ANN401 - fields have different types
) -> Case:
    """A job of one record, and nothing special about it."""
    return Case(
        options=options,
        records={"": {"state": state} | record},
        since=since,
        not_in_memory=because,
    )


def _held(*options: str, **record: Any) -> Case:  # noqa: ANN401 - fields have different types
    """A job that its owner holds: what it asks for is all there is to see."""
    return _in(PENDING, "-H", *options, **{"held": "USER_OR_ADMIN", **record})


_RESERVE: Final = ("scontrol", "create", "reservation", "Duration=60")
_RESERVE_NOW: Final = (
    *(*_RESERVE, "StartTime=now"),
    "Flags=IGNORE_JOBS,FLEX,NO_HOLD_JOBS_AFTER",
)
_RESERVE_LATER: Final = (*_RESERVE, "StartTime=now+1hour", "Flags=IGNORE_JOBS")
_CLAIM: Final = (
    '{"theirs":1,"slurm_dl":{"v":1,"sig":"USR2","to":"full","grace_s":90,"by":"job",'
    '"model":"resnet50","ack":0,"nodes":4,"rate":7.5}}'
)

RUNS: Final[dict[str, Case]] = {
    "by-node": Case(
        options=("-N1", "-wn1", "--gpus-per-node=1", "-t2-03:04:00"),
        records={
            "": {"state": RUNNING, "gpus": 1, "gpu_type": None, "partition": "gpu"}
            | {"limit_s": 183840, "requeueable": True, "exclusive": False, "held": "NO"}
            | {"choices": ["n1"], "split": {"n1": 1}, "restarts": 0, "uid": 0, "contract": None}
        },
    ),
    "by-node-typed": Case(
        options=("-N2", "-wn1,n3", "--gres=gpu:a100:1", "--no-requeue"),
        records={
            "": {"state": RUNNING, "gpus": 2, "gpu_type": "a100", "n_nodes": 2}
            | {"requeueable": False, "split": {"n1": 1, "n3": 1}, "limit_s": float("inf")}
        },
    ),
    "by-node-prefixed": Case(
        options=("-N1", "-wn1", "--gpus-per-node=a100:1"),
        records={"": {"state": RUNNING, "gpus": 1, "gpu_type": "a100", "split": {"n1": 1}}},
    ),
    "by-gres": _in(RUNNING, "-N1", "-wn1", "--gres=gpu:1", gpus=1, gpu_type=None, split={"n1": 1}),
    "by-task": Case(
        options=("-n2", "-N1", "-wn5", "--gpus-per-task=1"),
        records={"": {"state": RUNNING, "gpus": 2, "gpu_type": None, "split": {"n5": 2}}},
    ),
    "by-task-typed": Case(
        options=("-n1", "-N1", "-wn5", "--gpus-per-task=a100:1"),
        records={"": {"state": RUNNING, "gpus": 1, "gpu_type": "a100", "split": {"n5": 1}}},
    ),
    "fill": _in(RUNNING, "-N1", "-wn2", "--gpus-per-node=3", gpus=3, split={"n2": 3}),
    "in-all": Case(
        options=("-N2", "-wn2,n3", "--gpus=4"),
        records={"": {"state": RUNNING, "gpus": 4, "n_nodes": 2, "split": {"n2": 1, "n3": 3}}},
        not_in_memory=_EVEN,
    ),
    "in-all-typed": _in(
        RUNNING, "-N1", "-wn6", "--gpus=a100:1", gpus=1, gpu_type="a100", split={"n6": 1}
    ),
    "by-socket": Case(
        options=("-N1", "-wn4", "--sockets-per-node=1", "--gpus-per-socket=a100:1"),
        records={"": {"state": RUNNING, "gpus": 1, "gpu_type": "a100", "split": {"n4": 1}}},
    ),
    "shard": Case(
        options=("-N1", "-wn6", "--gres=shard:1"),
        records={"": {"state": RUNNING, "gpus": 0.25, "gpu_type": None, "split": {"n6": 0.25}}},
        not_in_memory=_SHARDS,
    ),
    "cpus": Case(
        options=("-N1", "-wn1", "-n2", "-c3"),
        records={
            "": {"state": RUNNING, "gpus": 0, "cpus": 6, "mem_mb": 6000, "tasks": 1}
            | {"split": {"n1": 0}}
        },
        not_in_memory=_NO_CPUS,
    ),
    "no-gpu": _in(RUNNING, "-N1", "-wn4", "-t10", gpus=0, limit_s=600, split={"n4": 0}),
    "with-gres": Case(
        options=("-N1", "-wn3", "--gres=nvme:1,fpga:b:2"),
        records={
            "": {"state": RUNNING, "gpus": 0, "split": {"n3": 0}, "choices": ["n3"]}
            | {"gres": {"fpga": 2, "fpga:b": 2, "nvme": 1}, "unmodelled": None}
        },
        not_in_memory=_NO_GRES,
    ),
    "with-deadline": Case(
        options=("-N1", "-wn4", "-t60", "--deadline=now+7200"),
        records={"": {"state": RUNNING, "limit_s": 3600, "deadline": 7200, "split": {"n4": 0}}},
    ),
    "allocated": Case(
        tool="salloc",
        options=("-N1", "-wn5", "--gpus-per-node=1"),
        script=None,
        records={
            "": {"state": RUNNING, "gpus": 1, "requeueable": False, "split": {"n5": 1}},
        },
        not_in_memory="the cluster in memory has batch jobs only",
    ),
    "requeued": Case(
        options=("-N1", "-wn6", "--gpus-per-node=1", '--comment={"slurm_dl":{"sig":"USR1"}}'),
        settled=RUNNING,
        then=(("scontrol", "requeue", "Incomplete", "{id}"),),
        records={
            "": {"state": PENDING, "restarts": 1, "held": "BEGIN_TIME", "start_s": 0, "end_s": 0}
            | {"split": {}, "gpus": 1, "choices": ["n6"]}
            | {"contract": ["USR1", "batch", 120.0, "daemon"], "acked_run": None}
        },
    ),
    "suspended": Case(
        options=("-N1", "-wn6", "--gpus-per-node=1"),
        settled=RUNNING,
        then=(("scontrol", "suspend", "{id}"),),
        records={"": {"state": "SUSPENDED", "gpus": 1, "split": {"n6": 1}}},
        not_in_memory="the cluster in memory suspends nothing",
    ),
    # From here on n5 and n6 start nothing more: Slurm waits with a node until its last run is gone.
    "leaving": Case(
        options=("-N1", "-wn6", "--gpus-per-node=1"),
        script=STUBBORN,
        settled=RUNNING,
        then=(
            ONCE_DEAF,
            ("scancel", "{id}"),
        ),
        records={"": {"state": "COMPLETING", "gpus": 1, "split": {"n6": 1}, "held": "NO"}},
        not_in_memory=_AT_ONCE,
    ),
    "leaving-to-wait": Case(
        options=("-N1", "-wn5"),
        script=STUBBORN,
        settled=RUNNING,
        then=(
            ONCE_DEAF,
            ("scontrol", "requeue", "Incomplete", "{id}"),
        ),
        records={"": {"state": "COMPLETING", "start_s": 0, "restarts": 1, "split": {"n5": 0}}},
        not_in_memory=_AT_ONCE,
    ),
    "stepped": Case(
        options=("--array=0-200:10%2", "-N1", "-wn4", "--gpus-per-node=1"),
        settled=RUNNING,
        then=(("scontrol", "hold", "{id}_200"),),
        records={
            "_0": {"state": RUNNING, "tasks": 1},
            "_10": {"state": RUNNING, "tasks": 1},
            "_[20-190:10]": {"state": PENDING, "tasks": 18, "held": "LIMIT", "gpus": 1},
            "_200": {"state": PENDING, "tasks": 1, "held": "USER_OR_ADMIN"},
        },
        not_in_memory=_NO_ARRAYS,
    ),
    "again": Case(
        options=("--array=0-5", "-N1", "-wn4", "--gpus-per-node=1"),
        settled=RUNNING,
        then=(
            ("scontrol", "requeue", "Incomplete", "{id}_0"),
            ("scontrol", "hold", "{id}_4"),
        ),
        records={
            "_0": {"state": PENDING, "restarts": 1, "tasks": 1, "held": "BEGIN_TIME"}
            | {"start_s": 0, "split": {}},
            "_1": {"state": RUNNING, "restarts": 0},
            "_4": {"state": PENDING, "held": "USER_OR_ADMIN", "tasks": 1},
            "_[2-3,5]": {"state": PENDING, "tasks": 3, "restarts": 0},
        },
        not_in_memory=_NO_ARRAYS,
    ),
    "ended": Case(
        options=("-wn4", "-N1", "--wrap=true"),
        script=None,
        settled="COMPLETED",
        records={"": {"state": "COMPLETED", "split": {}}},
    ),
    "broken": Case(
        options=("-wn4", "-N1", "--wrap=false"),
        script=None,
        settled="FAILED",
        records={"": {"state": "FAILED", "split": {}}},
    ),
    "cancelled": Case(
        options=("-H", "-N1"),
        then=(("scancel", "{id}"),),
        records={"": {"state": "FAILED", "start_s": 0, "split": {}}},
    ),
}
"""Cases that run, have run, or need what runs."""

WAITS: Final[dict[str, Case]] = {
    "held": Case(
        options=("-H", "-N4", "--exclusive", "--gpus-per-node=4"),
        records={
            "": {"state": PENDING, "held": "USER_OR_ADMIN", "gpus": 16, "n_nodes": 4}
            | {"exclusive": True, "priority": 0}
        },
    ),
    "later": _in(PENDING, "-bnow+1hour", "-t30", held="BEGIN_TIME", start_s=0, end_s=0),
    "after": _in(PENDING, "--dependency=afterok:{by-node}", held="DEPENDENCY", start_s=0),
    "after-any": Case(
        options=("--dependency=afterany:{by-node}:{ended}",),
        records={"": {"state": PENDING, "held": "DEPENDENCY"}},
        not_in_memory="a job in memory waits for one other",
    ),
    "never": _in(PENDING, "--dependency=afterok:{broken}", held="DEPENDENCY"),
    "two-partitions": Case(
        options=("-pgpu,debug", "-N2", "--gpus-per-node=4"),
        records={"": {"state": PENDING, "partition": "gpu", "also_in": ["debug"], "held": "NO"}},
        not_in_memory=_ONE_PARTITION,
    ),
    "too-long": Case(
        options=("-pdebug", "-t2:00:00"),
        records={"": {"state": PENDING, "partition": "debug", "also_in": [], "held": "LIMIT"}},
        not_in_memory=_ONE_PARTITION,
    ),
    "big": Case(
        options=("-N4", "--gpus-per-node=4", '--comment={"slurm_dl":{"v":1,"sig":"USR1"}}'),
        first=((*_RESERVE_NOW, "ReservationName=slurm_dl_5", "Nodes=n1,n2", "Users=root"),),
        then=(("scontrol", "update", "JobId={id}", "ReservationName=slurm_dl_5"),),
        records={
            "": {"state": PENDING, "gpus": 16, "held": "NO", "reserved": "slurm_dl_5"}
            | {"contract": ["USR1", "batch", 120.0, "daemon"], "model": None}
        },
    ),
    "big-in-all": _in(PENDING, "--gpus=16", gpus=16, n_nodes=4, choices=None, because=_EVEN),
    "in-lecture": Case(
        options=("--reservation=lecture", "-N1"),
        first=((*_RESERVE_LATER, "ReservationName=lecture", "Nodes=n5", "Users=root"),),
        records={"": {"state": PENDING, "held": "RESERVATION", "reserved": None}},
        not_in_memory="reservations in memory are ours and begin at once",
    ),
    "excludes": Case(
        options=("-H", "--array=0-3", "-N1", "-xn1,n3"),
        records={"_[0-3]": {"state": PENDING, "choices": None, "excluded": ["n1", "n3"]}},
        not_in_memory=_NO_ARRAYS,
    ),
    "claims": _held(
        "--comment=" + _CLAIM,
        contract=["USR2", "full", 90.0, "job"],
        model="resnet50",
        acked_run=0,
        most_nodes=4,
        rate=7.5,
        because="jobs in memory name no model",
    ),
    "names": _held("-N2", "-wn1,n3", choices=["n1", "n3"]),
    "names-too-few": _held("-N2", "-wn1", choices=[], because="nodes in memory are all named"),
    "feature": _held("-Cbig", choices=["n1", "n2"], because=_NO_FEATURES),
    "features": _held("-Cnew&big", choices=["n1"], because=_NO_FEATURES),
    "features-by-comma": _held("-Cnew,big", choices=["n1"], because=_NO_FEATURES),
    "one-of-features": _held("-Cbig|new", choices=[], because=_NO_FEATURES),
    "same-of-features": _held("-C[big|new]", choices=[], because=_NO_FEATURES),
    "prefers": _held("--prefer=big", choices=None, because=_NO_FEATURES),
    "all-at-once": _held(
        *("-N2", "-wn1,n3", "-xn2", "-Cnew"),
        choices=["n1", "n3"],
        excluded=["n2"],
        because=_NO_FEATURES,
    ),
    "one-switch": _held(
        *("-N2", "--switches=1@10:00"),
        choices=["n1", "n2"],
        because="nodes in memory have no switches",
    ),
    "het": Case(
        options=("-N1", "--gpus-per-node=1", "-Jhet", ":", "-N1", "--gpus-per-node=2", "-Jhet"),
        records={
            # Slurm gives the reason in its first backfill pass.
            end: {"state": PENDING, "gpus": gpus, "requeueable": False, "choices": []}
            | {"reason": "Resources"}
            for end, gpus in (("+0", 1), ("+1", 2))
        },
        not_in_memory="the cluster in memory has no heterogeneous jobs",
    ),
    "of-vision": _held("-Avision", account="vision", because="jobs in memory have no account"),
    "of-high": _held("--qos=high", qos="high", since=(24, 11), because=_NO_QOS),
}
"""Cases that wait for something or somebody."""

ASKS: Final[dict[str, Case]] = {
    "asks-in-all": _held("-N2", "--gpus=6", gpus=6, n_nodes=2, gpu_type=None),
    "asks-in-all-typed": _held("-N1", "--gpus=a100:3", gpus=3, gpu_type="a100"),
    "asks-by-node": _held("-N3", "--gpus-per-node=2", gpus=6, n_nodes=3, gpu_type=None),
    "asks-by-node-typed": _held("-N3", "--gpus-per-node=a100:2", gpus=6, gpu_type="a100"),
    "asks-by-gres": _held("-N2", "--gres=gpu:2", gpus=4, n_nodes=2, gpu_type=None),
    "asks-by-gres-typed": _held("-N2", "--gres=gpu:a100:2", gpus=4, gpu_type="a100"),
    "asks-for-one": _held("--gres=gpu", gpus=1, gpu_type=None),
    "asks-for-none": _held("--gres=none", gpus=0),
    "asks-by-task": _held("-N1", "-n3", "--gpus-per-task=1", gpus=3, gpu_type=None),
    "asks-by-task-typed": _held(
        "-N2", "--ntasks-per-node=2", "--gpus-per-task=a100:1", gpus=4, gpu_type="a100"
    ),
    "asks-by-socket": _held(
        "-N2", "--sockets-per-node=2", "--gpus-per-socket=1", gpus=4, gpu_type=None
    ),
    "asks-by-socket-typed": _held(
        "-N1", "--sockets-per-node=2", "--gpus-per-socket=a100:1", gpus=2, gpu_type="a100"
    ),
    "asks-twice": _held("-N2", "--gpus=4", "--gpus-per-node=2", gpus=4, n_nodes=2),
    "asks-with-cpus": _held(
        *("-N1", "--gpus-per-node=2", "--cpus-per-gpu=3", "--mem-per-gpu=100"),
        gpus=2,
        because=_NO_CPUS,
    ),
    "asks-for-tasks-of-cpus": _held(
        *("-N1", "-n4", "-c3", "--gpus-per-node=4"), gpus=4, n_nodes=1, because=_NO_CPUS
    ),
    "asks-in-all-for-tasks-of-cpus": _held(
        *("-N1", "-n4", "-c2", "--gpus=4"), gpus=4, n_nodes=1, because=_NO_CPUS
    ),
    "asks-for-memory": _held("-N2", "--mem=64000", mem_mb=128_000, because=_NO_CPUS),
    "asks-for-tasks-by-gpu": _held(
        "--gpus=4", "--ntasks-per-gpu=2", gpus=4, because="the cluster in memory has no tasks"
    ),
    "asks-for-some-nodes": _held(
        *("-N2-4", "--gpus-per-node=2"), gpus=4, n_nodes=2, because="jobs in memory ask exactly"
    ),
    "asks-by-tres": _held(
        *("-n2", "-N1", "--tres-per-task=cpu:1,gres/gpu:2"),
        since=(23, 11),
        gpus=4,
        gpu_type=None,
        because="the cluster in memory has no TRES",
    ),
    "asks-for-shards": _held("-N2", "--gres=shard:2", gpus=1.0, n_nodes=2, because=_SHARDS),
    "asks-for-shards-typed": _held("-N1", "--gres=shard:a100:2", gpus=0.5, because=_SHARDS),
    "alone": _held("-N1", "--exclusive", exclusive=True),
    "alone-by-switch": _held(
        *("-N1", "--exclusive=topo"),
        since=(24, 11),
        exclusive=True,
        because="nodes in memory have no switches",
    ),
    "beside-others": _held(
        "-N1", "--oversubscribe", exclusive=False, because="jobs in memory share no GPU"
    ),
}
"""Cases that only ask: every way of saying how many GPUs."""

_FIRST, _SECOND = ["n1", "n2"], ["n3", "n4"]

CONDITIONS: Final[dict[str, Case]] = {
    **{
        name: _held(*options, choices=choices, gres=gres, because=_NO_GRES)
        for name, options, choices, gres in (
            ("disk", ("--tmp=2000",), _FIRST, {}),
            ("some-disk", ("--tmp=1",), _FIRST + _SECOND, {}),
            ("too-much-disk", ("--tmp=9T",), [], {}),
            ("nvme", ("--gres=nvme",), _FIRST + _SECOND, {"nvme": 1}),
            ("nvmes", ("-N2", "--gres=nvme:2"), _FIRST, {"nvme": 2}),
            ("nvme-nowhere", ("--gres=nvme:5",), [], {"nvme": 5}),
            ("nvme-and-gpu", ("--gres=gpu:1,nvme:1",), _FIRST + _SECOND, {"nvme": 1}),
            ("disk-and-nvme", ("--tmp=4G", "--gres=nvme:1"), [], {"nvme": 1}),
            ("fpga", ("--gres=fpga:3",), _SECOND, {"fpga": 3}),
            ("fpga-typed", ("--gres=fpga:a:1",), _SECOND, {"fpga": 1, "fpga:a": 1}),
            ("fpga-nowhere", ("--gres=fpga:a:2",), [], {"fpga": 2, "fpga:a": 2}),
        )
    },
    "nvme-by-task": _held(
        *("-n2", "-N1", "--tres-per-task=cpu:1,gres/nvme:1"),
        since=(23, 11),
        choices=_FIRST,
        gres={"nvme": 2},
        because=_NO_GRES,
    ),
    "names-in-a-row": _held("-wn1", "--contiguous", choices=[], unmodelled="--contiguous"),
    "in-time": _held("-t60", "--deadline=now+7200", deadline=7200, choices=None),
    "least-cpus": _held(
        "-N2", "--mincpus=10", cpus=20, choices=None, unmodelled=None, because=_NO_CPUS
    ),
    "asks-threads-per-core": _held(
        "--threads-per-core=1", choices=None, unmodelled=None, because=_NO_CPUS
    ),
    "asks-hint": _held("--hint=nomultithread", choices=None, unmodelled=None, because=_NO_CPUS),
    "asks-licenses": _held("--licenses=matlab:1", choices=None, unmodelled=None),
    "any-binding": _held("--gres-flags=disable-binding", choices=None, unmodelled=None),
    **{
        f"asks-{option.removeprefix('--').partition('=')[0]}": _held(
            option, unmodelled=shown or option.partition("=")[0], choices=[], **more
        )
        for option, shown, more in (
            ("--contiguous", "", {}),
            ("--cores-per-socket=4", "", {}),
            ("--sockets-per-node=2", "", {}),
            ("--ntasks-per-socket=2", "", {}),
            ("--core-spec=2", "", {"exclusive": True}),
            ("--thread-spec=1", "--core-spec", {"exclusive": True, "because": _NO_CPUS}),
            ("--exclusive=user", "--exclusive=user", {"exclusive": True}),
            ("--gres-flags=enforce-binding", "", {}),
            ("--spread-job", "", {}),
            ("--network=ib", "", {}),
            ("--bb=buffer", "", {}),
            ("--cluster-constraint=here", "", {}),
        )
    },
}
"""Cases that ask something else of nodes: what is modelled, and options that leave no node."""

HOSTILE: Final[dict[str, Case]] = {
    f"a|b\n{FAKE}": _held("--comment=x\n7|7|RUNNING|\n", "-N3", n_nodes=3, because=_NO_TEXT),
    "\x1b[31mred\x1b[0m": _held(
        f'--comment={{"slurm_dl":{{"sig":"USR1"}}}}\n{FAKE}', contract=None, because=_NO_TEXT
    ),
    "\udcff\udcfe": _held("--comment=\udcc3( is not UTF-8", because=_NO_TEXT),
    "n" * 300: _held("--comment=" + "c" * 1024, because=_NO_TEXT),
    " spaces\tand tabs ": _held("--comment=\r\n\x0b\x0c", because=_NO_TEXT),
}
"""Names and comments that try to be something else."""

CASES: Final[dict[str, Case]] = RUNS | WAITS | ASKS | CONDITIONS | HOSTILE
"""By job name, in the order of submission."""

FEATURES: Final = {"n1": ("big,new", "big,new"), "n2": ("big,new", "big"), "n3": ("new", "new")}
"""Available and active features of each node."""

AFTERWARDS: Final[tuple[tuple[str, ...], ...]] = (
    (*_RESERVE_NOW, "ReservationName=course", "Nodes=n3", "Users=daemon"),
    (
        *("scontrol", "update", "NodeName=n4", "State=DRAIN"),
        "Reason=bad\nNodeName=n9 State=IDLE Partitions=gpu",
    ),
)
"""What is done once all is submitted: somebody's reservation, a node drained for a false reason."""

NODES: Final = {
    "up": {"n1": True, "n2": True, "n3": False, "n4": False, "n5": True, "n6": True},
    "leaf": {"n1": 0, "n2": 0, "n3": 1, "n4": 1, "n5": 2, "n6": 2},
    "partitions": {"debug": ["n1", "n2"], "gpu": ["n1", "n2", "n3", "n4", "n5", "n6"]},
    "max_time_s": {"debug": 3600, "gpu": None},
    "cpus": {"n1": 16, "n2": 16, "n3": 16, "n4": 16, "n5": 14, "n6": 14},
    "mem_mb": {"n1": 64000, "n2": 64000, "n3": 64000, "n4": 64000, "n5": 50000, "n6": 50000},
    "gres": {
        "fpga": [0, 0, 3, 3, 0, 0],
        "fpga:a": [0, 0, 1, 1, 0, 0],
        "fpga:b": [0, 0, 2, 2, 0, 0],
        "nvme": [4, 4, 1, 1, 0, 0],
    },
}
"""n3 is in somebody's reservation, n4 drained; n5 and n6 keep cores and memory for themselves."""

SETTLED_AT_LAST: Final = ("too-long", "PartitionTimeLimit")
"""A job and the reason that it has once the scheduler has looked at every job."""

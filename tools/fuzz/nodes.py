"""What sinfo and scontrol say of nodes, reservations and settings."""

from __future__ import annotations

import contextlib

from slurm_dl.doctor.controller_config import CannotTellError, ControllerConfig, PartitionRecord
from slurm_dl.engine.settings import Settings
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.model.ids import JobId
from slurm_dl.model.snapshot import JobText
from slurm_dl.sandbox.private_cluster import is_in_service, node_states
from slurm_dl.slurm.controller import config_values, partition_values, read_config, requeue_hold
from slurm_dl.slurm.preflight import check_external, check_native
from slurm_dl.slurm.read.associations import BarredCandidate, barred
from slurm_dl.slurm.read.grammar import expand, fold
from slurm_dl.slurm.read.node_reader import NODE_FIELDS, read_nodes, read_reservations, site_of
from slurm_dl.slurm.releases import faults, parse_release, series_of
from tools.fuzz.said import NONCE, SaidSlurm, record, site
from tools.fuzz.target import Target, text

_NODE = {
    "NodeList": "n1",
    "StateComplete": "mixed+drain",
    "Partition": "gpu*",
    "CPUs": "16",
    "Memory": "1000",
    "Gres": "gpu:a100:4(S:0),shard:8",
    "features_act": "ib,fast",
}
_CONFIG = (
    b"AccountingStorageType   = accounting_storage/slurmdbd\nPreemptType = preempt/qos\n"
    b"PreemptMode = REQUEUE\nPreemptParameters = send_user_signal\nPriorityType = "
    b"priority/multifactor\nSLURM_VERSION           = 22.05.8\nSelectTypeParameters = "
    b"CR_CORE_MEMORY\nSlurmUser = slurm(64030)\nKillWait = 30 sec\nAuthInfo = cred_expire=10\n"
    b"SchedulerParameters = bf_max_job_test=5,defer\nPriorityWeightAge = 10\n"
)

_SETTINGS = Settings(partitions=frozenset({"gpu"}))


def _nodes(data: bytes) -> object:
    seen = read_nodes(text(data), NONCE)
    return site_of(seen, topology="", reservations=(), config=site().config, type_row={})


def _topology(data: bytes) -> object:
    seen = read_nodes(record(NODE_FIELDS, _NODE).decode(), NONCE)
    return site_of(seen, topology=text(data), reservations=(), config=site().config, type_row={})


def _expand(data: bytes) -> object:
    return fold(expand(text(data)))


def _release(data: bytes) -> object:
    release = parse_release(text(data))
    return series_of(release), faults(release)


def _preflight(data: bytes) -> object:
    config, _, qos = text(data).partition("\x1c")
    slurm = SaidSlurm({"scontrol": config, "sacctmgr": qos})
    with contextlib.suppress(ConfigError):
        check_external(slurm, "normal")
    return check_native(slurm, qos="normal", settings=_SETTINGS, poll_s=5.0)


def _doctor(data: bytes) -> None:
    said = text(data)
    controller = ControllerConfig(config_values(said))
    for what in ("release", "series", "slurm_user", "has_accounting"):
        with contextlib.suppress(CannotTellError, ClusterError):
            getattr(controller, what)
    with contextlib.suppress(ClusterError):
        requeue_hold(controller.values)
    for key in ("PriorityWeightAge", "KillWait"):
        with contextlib.suppress(CannotTellError):
            controller.whole(key)
    with contextlib.suppress(CannotTellError):
        controller.option("SchedulerParameters", "bf_max_job_test", 1)
    for name, values in partition_values(said).items():
        with contextlib.suppress(CannotTellError):
            _ = PartitionRecord(name, values).limit_s


TARGETS = (
    Target(
        name="sinfo",
        parse=_nodes,
        own=(ClusterError,),
        source="sinfo: nodes, partitions, GRES",
        parser="slurm.read.node_reader.read_nodes",
        seeds=(record(NODE_FIELDS, _NODE) + record(NODE_FIELDS, _NODE | {"NodeList": "n[2-3]"}),),
    ),
    Target(
        name="node-list",
        parse=_expand,
        own=(ClusterError,),
        source="node lists of Slurm's, some of which users write",
        parser="slurm.read.grammar.expand",
        seeds=(b"n[1-3,07],gpu1", b"a[1-2]b[3-4]", b"(null)", b"n1"),
    ),
    Target(
        name="topology",
        parse=_topology,
        own=(ClusterError,),
        source="scontrol show topology",
        parser="slurm.read.node_reader.site_of",
        seeds=(
            (
                b"SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]\nSwitchName=s0 Level=1 "
                b"LinkSpeed=1 Nodes=n[1-2] Switches=s1\n"
            ),
            b"BlockName=b1 BlockIndex=0 Nodes=n1 BlockSize=2\n",
        ),
    ),
    Target(
        name="reservations",
        parse=lambda data: read_reservations(text(data)),
        own=(ClusterError,),
        source="scontrol show reservation",
        parser="slurm.read.node_reader.read_reservations",
        seeds=(
            (
                b"ReservationName=slurm_dl_1 StartTime=100 EndTime=2026-01-02T03:04:05 Duration=1 "
                b"Nodes=n[1-2] NodeCnt=1 CoreCnt=4 Flags=FLEX State=ACTIVE BurstBuffer=(null)\n"
            ),
        ),
    ),
    Target(
        name="associations",
        parse=lambda data: barred(
            text(data),
            {
                JobId(1): BarredCandidate(
                    text=JobText(label="1", user="games", account="ml", qos="normal"),
                    partition="gpu",
                    tres={"gres/gpu": 4.0},
                    limit_min=60.0,
                    left_min=30.0,
                )
            },
            enforced=frozenset({"all"}),
            partitions={},
        ),
        own=(),
        source="scontrol show assoc_mgr: accounts, users and QOS, which admins name",
        parser="slurm.read.associations.barred",
        seeds=(
            (
                b"\nClusterName=c Account=root UserName= Partition= Priority=0 ID=1\n"
                b"    ParentAccount= Lft=1\n    GrpWall=N(0.00)\n    GrpTRESMins=cpu=N(0)\n"
                b"ClusterName=c Account=ml UserName=games(5) Partition= Priority=0 ID=2\n"
                b"    ParentAccount= Lft=2\n    GrpWall=5(0.00)\n    GrpTRESMins=gres/gpu=1(2)\n"
                b"\nQOS Records\n\nQOS=normal(1)\n    GrpWall=N(0.00)\n    GrpTRESMins=cpu=N(0)\n"
            ),
        ),
    ),
    Target(
        name="slurm-config",
        parse=lambda data: read_config(text(data)),
        own=(ClusterError,),
        source="scontrol show config",
        parser="slurm.controller.read_config",
        seeds=(_CONFIG,),
    ),
    Target(
        name="release",
        parse=_release,
        own=(ClusterError,),
        source="the release in scontrol show config or -V",
        parser="slurm.releases.parse_release",
        seeds=(b"slurm-wlm 22.05.8", b"23.02.1-rc1"),
    ),
    Target(
        name="preflight",
        parse=_preflight,
        own=(ClusterError, ConfigError),
        source="scontrol show config and sacctmgr show qos",
        parser="slurm.preflight.check_native",
        seeds=(_CONFIG + b"\x1cnormal|requeue,within|00:02:00|1-00:01:00|\n",),
    ),
    Target(
        name="doctor",
        parse=_doctor,
        source="scontrol show config and partitions, for dlctl doctor",
        parser="doctor.controller_config",
        seeds=(
            _CONFIG,
            b"PartitionName=gpu MaxTime=1-00:00:00 State=UP PriorityTier=1 Nodes=n[1-2]\n",
        ),
    ),
    Target(
        name="sandbox-nodes",
        parse=lambda data: [is_in_service(s) for s in node_states(text(data)).values()],
        source="scontrol show nodes of the sandbox",
        parser="sandbox.private_cluster.node_states",
        seeds=(b"NodeName=n1 Arch=x86_64 State=IDLE+DRAIN ThreadsPerCore=1\n",),
    ),
)

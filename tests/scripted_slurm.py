"""Slurm's tools with words of a test's own, and a daemon that decides by them."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from squeue_records import RUNNING, answer, words

from slurm_dl.engine.cycle import Carry, Cycle, run_cycle
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.plan import ClusterAction, OpenHandover
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.slurm.cluster import SlurmCluster
from slurm_dl.slurm.tool_runner import Slurm

NOW_S = 1_000_000
HOUR_S = 3600
CONFIG = (Path(__file__).parent / "data" / "slurm-22.05" / "config.txt").read_text("utf-8")
LEAVES = "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]\n"
TWO_LEAVES = "SwitchName=a Level=0 Nodes=n1\nSwitchName=b Level=0 Nodes=n2\n"
PARTITION = "PartitionName=gpu State=UP MaxTime=UNLIMITED MinNodes=0 MaxNodes=UNLIMITED QoS=N/A"
NODE = {"StateComplete": "mixed", "Partition": "gpu*", "CPUs": "16", "Memory": "64000"}
NODE |= {"Gres": "gpu:4,nvme:fast:1", "features_act": "(null)"}
TELLS = "CPUEfctv=16 CPUTot=16 RealMemory=64000 TmpDisk=1000"
CONDITIONS = "(null) 1 0 * * * N/A 0 (null)"

VICTIM = RUNNING | words(
    "JobID=1 JobArrayID=1 NumNodes=2 NumTasks=2 NumCPUs=4 NodeList=n[1-2] tres-alloc=cpu=4,mem=4G "
    "tres-per-node=gres:gpu:4 SubmitTime=900000 StartTime=999000 EndTime=N/A EligibleTime=900000 "
    "TimeLimit=1:00:00 ReqNodes= Feature=(null) HetJobID=0 Account=ml QOS=normal Deadline=N/A"
)
VICTIM["Comment"] = '{"slurm_dl":{"v":1,"sig":"USR1","grace_s":60}}'
WAITS = VICTIM | words(
    "JobID=2 JobArrayID=2 UserID=1001 State=PENDING Reason=Resources NodeList= StartTime=0 "
    "EndTime=0"
)
ONE_NODE = {"NumNodes": "1", "NumTasks": "1", "NumCPUs": "2"}


class Tools(Slurm):
    """Slurm's tools, which say what a row has them say."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.told = told
        self.calls = Counter[str]()
        self.spent_s = 0.0

    @property
    def slurm_conf(self) -> str:
        """There is none that could be read."""
        return "/nonexistent"

    def run(self, tool: str, *args: str) -> str:
        """What the tool prints."""
        self.calls[tool] += 1
        if tool == "scontrol":
            texts = {"config": CONFIG, "partition": PARTITION, "job": ""} | self.told
            if args[1] == "job" and self.told.get("job", "") is None:
                msg = "slurm_load_jobs error: Invalid job id specified"
                raise ClusterError(msg)
            if args[1] == "node":
                tells = self.told.get("tells", {})
                return "".join(f"NodeName={n} {tells.get(n, TELLS)}\n" for n in ("n1", "n2"))
            return str(texts.get(args[1], ""))
        if tool == "sinfo":
            nodes = self.told.get("nodes", {})
            rows = [{"NodeList": n} | NODE | nodes.get(n, {}) for n in ("n1", "n2")]
            return answer(args, rows)
        if args[-1].startswith("--format="):
            asked = [self.told.get("victim_asks", CONDITIONS), self.told.get("asks", CONDITIONS)]
            short = "%c" not in args[-1]
            return "".join(
                f"{job} {asks.partition(' ')[0] if short else asks}\n"
                for job, asks in enumerate(asked, start=1)
            )
        rows = [VICTIM | self.told.get("victim", {}), WAITS | self.told.get("waits", {})]
        return answer(args, [*rows, *self.told.get("more", ())])


class Cluster(SlurmCluster):
    """Everything that is done succeeds and changes nothing."""

    def apply(self, _: ClusterAction, /) -> None:
        """Nothing."""


def decided(**told: Any) -> Cycle:  # noqa: ANN401 - see `Tools`
    """The first cycle of a daemon."""
    return cycles(Tools(told), acting=[True])[0]


def cycles(tools: Tools, acting: Sequence[bool]) -> list[Cycle]:
    """As many cycles of a daemon, which acts or only looks."""
    weights = tools.told.get("weights", {})
    cluster = Cluster(tools, max_grace_s=600, clock=lambda: float(NOW_S), weights=weights)
    ledger = Ledger(MemoryStore())
    limits = Preemption(min_quantum_s=1, cooldown_s=1, max_grace_s=600, limit_reserve_s=0)
    how = Settings(partitions=frozenset({"gpu"}), preemption=limits)
    more: dict[str, Any] = {}
    if "look_again" in inspect.signature(run_cycle).parameters:
        more["look_again"] = cluster.look_again
    more["carry"] = Carry()
    policy = DiscreteLas(thresholds_gpu_s=(60.0, 1e6))
    return [
        run_cycle(cluster, ledger, policy, how, clock=lambda: float(NOW_S), acting=acts, **more)
        for acts in acting
    ]


def opened(cycle: Cycle) -> list[tuple[int, ...]]:
    """Beneficiaries of the hand-overs that begin."""
    actions = [done.action for done in cycle.done]
    return [a.handover.beneficiaries for a in actions if isinstance(a, OpenHandover)]

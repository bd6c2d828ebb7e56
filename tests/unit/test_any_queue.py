"""Whatever users without GPUs put into the queue, a look succeeds and serves who waits for GPUs."""

from __future__ import annotations

import string
from collections import Counter
from contextlib import suppress
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from squeue_records import RUNNING, answer, words

from slurm_dl.engine.cycle import run_cycle
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.ledger.store_protocol import MemoryStore
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.plan import ClusterAction, OpenHandover, Signal
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.slurm.cluster import SlurmCluster
from slurm_dl.slurm.read.node_reader import NODE_FIELDS
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.slurm.write.release_all import release_all

NOW_S = 1_000_000
STATES = (
    *("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING", "RUNNING", "RESIZING"),
    *("SIGNALING", "SUSPENDED", "STOPPED", "COMPLETING", "STAGE_OUT", "COMPLETED", "BOOT_FAIL"),
    *("CANCELLED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"),
    "NEW_STATE",
)
CONFIG = Path(__file__).parents[1] / "data" / "slurm-22.05" / "config.txt"
NODE = ("mixed", "gpu*", "16", "64000", "gpu:4", "(null)")
PLAIN = RUNNING | words(
    "State=PENDING Reason=Resources NumTasks=2 NumNodes=2 NumCPUs=4 NodeList= tres-alloc=cpu:4 "
    "tres-per-node=N/A Sockets=N/A SubmitTime=900000 StartTime=0 EndTime=0 EligibleTime=900000 "
    "TimeLimit=UNLIMITED ReqNodes= Feature=(null) HetJobID=0"
)
HONEST = PLAIN | {"tres-per-node": "gres:gpu:4", "UserID": "1000"}
HONEST["Comment"] = '{"slurm_dl":{"v":1,"sig":"USR1","grace_s":60}}'
VICTIM = HONEST | {"JobID": "1", "JobArrayID": "1", "State": "RUNNING", "NodeList": "n[1-2]"}
VICTIM |= {"StartTime": "990000", "EndTime": "N/A"}
WAITS = HONEST | {"JobID": "2", "JobArrayID": "2", "UserID": "1001"}

TASKS = st.lists(st.integers(0, 2000), min_size=1, max_size=300, unique=True).map(sorted)
SPECS = st.one_of(
    TASKS.map(lambda tasks: ",".join(map(str, tasks))),
    st.builds("{}-{}:{}".format, st.integers(0, 50), st.integers(51, 4000), st.integers(0, 99)),
    st.builds("{}-{}:2,3-9".format, st.integers(0, 9), st.sampled_from([50, 10**9])),
    st.text(string.digits + "-,:%", max_size=9),
)
LABELS = st.one_of(
    st.sampled_from(["{0}", "{0}_7", "{0}+1", "{0}_[", "{0}_[]", "x", "", "{0}_4294967294"]),
    SPECS.map(lambda spec: f"{{0}}_[{spec}]"),
    st.builds("{{0}}_[{}%{}]".format, SPECS, st.integers(0, 10**6)),
)
WORDS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["Dependency", "JobHeldUser", "(null)", "N/A", "None", "a\nb", "1 n1\n2 n2"]),
)
TIMES = st.one_of(
    st.integers(0, 2**63).map(str), st.sampled_from(["N/A", "Unknown", "NONE", "", "1970-01-01"])
)
NUMBERS = st.one_of(st.integers(0, 2**40).map(str), st.sampled_from(["", "0", "1-4", "4294967294"]))
LIMITS = st.sampled_from(["1:00", "UNLIMITED", "INVALID", "NOT_SET", "9-00:00:00", "x", "0:00"])
ODD = st.fixed_dictionaries(
    {"JobArrayID": LABELS, "State": st.sampled_from(STATES)},
    optional={
        **dict.fromkeys(("Name", "Comment", "WCKey", "Reason", "Account", "UserName"), WORDS),
        **dict.fromkeys(("Feature", "ReqNodes", "Reservation", "Partition", "HetJobID"), WORDS),
        **dict.fromkeys(("StartTime", "EndTime", "EligibleTime", "SubmitTime"), TIMES),
        **dict.fromkeys(("NumNodes", "NumTasks", "NumCPUs", "PriorityLong"), NUMBERS),
        **dict.fromkeys(("UserID", "RestartCnt", "Sockets"), NUMBERS),
        "TimeLimit": LIMITS,
        "NodeList": st.sampled_from(["n1", "n[1-2]", "n[", "", "(null)"]),
    },
)
SECOND = st.sampled_from(["same", "empty", "other", "fewer"])
"""How what is asked about arrays differs from the listing before it."""


class Queue(Slurm):
    """Two nodes, two honest jobs, and those of an attacker."""

    def __init__(self, odd: list[dict[str, str]], second: str) -> None:
        self.calls = Counter()
        self.spent_s = 0.0
        self.second = second
        self.updated: list[str] = []
        self.odd = [
            PLAIN | {"UserID": "2000", "JobID": str(n)} | one | {"JobArrayID": label.format(n)}
            for n, one in enumerate(odd, start=100)
            for label in [one["JobArrayID"]]
        ]

    @property
    def slurm_conf(self) -> str:
        """There is none that could be read."""
        return "/nonexistent"

    def run(self, tool: str, *args: str) -> str:
        """What Slurm says."""
        if tool == "scontrol":
            self.updated += [args[1]] if args[0] == "update" else []
            return CONFIG.read_text(encoding="utf-8") if args[-1] == "config" else ""
        if tool == "sprio":
            return "2 7\n"
        if args[-1].startswith("--format="):
            return "".join(
                f"{r['JobID']} (null) 1 0 * * * N/A 0 (null)\n" for r in (*self.odd, WAITS)
            )
        rows = [VICTIM, *self.odd, WAITS]
        if tool == "sinfo":
            rows = [dict(zip(NODE_FIELDS, (n, *NODE), strict=True)) for n in ("n1", "n2")]
        elif "--array" not in args:
            rows = self.folded()
        return answer(args, rows)

    def folded(self) -> list[dict[str, str]]:
        """The attacker's arrays, as they are by then."""
        if self.second == "empty":
            return []
        if self.second == "other":
            return [r | {"JobArrayID": f"{r['JobID']}_[1-3]"} for r in self.odd]
        return self.odd[self.second == "fewer" :]


class Cluster(SlurmCluster):
    """Everything that is done succeeds and changes nothing."""

    def apply(self, _: ClusterAction, /) -> None:
        """Nothing."""


@settings(max_examples=100)
@given(st.lists(ODD, max_size=6), st.lists(ODD, max_size=6), SECOND)
def test_any_queue_is_read_and_honest_jobs_are_served(
    first: list[dict[str, str]], then: list[dict[str, str]], second: str
) -> None:
    """No look fails, GPUs are taken back, no job is forgotten, and everything can be released."""
    queue = Queue(first, second)
    cluster = Cluster(queue, max_grace_s=600, clock=lambda: float(NOW_S))
    ledger = Ledger(MemoryStore())
    limits = Preemption(min_quantum_s=1, cooldown_s=1, max_grace_s=600, limit_reserve_s=0)
    how = Settings(partitions=frozenset({"gpu"}), preemption=limits)
    policy = DiscreteLas(thresholds_gpu_s=(60.0, 1e6))
    done = []
    for odd in (first, then):
        queue.odd = Queue(odd, second).odd
        cycle = run_cycle(cluster, ledger, policy, how, clock=lambda: float(NOW_S), acting=True)
        seen = cycle.snapshot.seen
        listed = {int(r["JobID"]) for r in queue.odd}
        assert listed <= {*seen.jobs.job_id.tolist(), *seen.left_out}
        assert seen.left_out.keys().isdisjoint(seen.jobs.job_id.tolist())
        assert seen.unreadable == len(seen.left_out)
        done += [one.action for one in cycle.done]
    assert [a.handover.beneficiaries for a in done if isinstance(a, OpenHandover)] == [(2,)]
    assert [a.run.job_id for a in done if isinstance(a, Signal)] == [1]
    with suppress(ClusterError):  # Its last word, if anything was skipped.
        list(release_all(queue, ["gpu"]))
    assert {"JobId=1", "JobId=2"} <= set(queue.updated)

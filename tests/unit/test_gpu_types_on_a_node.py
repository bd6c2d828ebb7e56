"""GPUs of several types on one node: who gives way to whom, and what is counted of each type."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from scripted_slurm import VICTIM, decided
from small_traces import make_trace
from squeue_records import words

from slurm_dl.cli.dlsim.command import dlsim
from slurm_dl.config import Config
from slurm_dl.engine.cycle import Cycle
from slurm_dl.engine.placing.free_resources import FreeResources
from slurm_dl.experiments.oracle import Oracle
from slurm_dl.model.handover import Handover
from slurm_dl.model.ids import JobId
from slurm_dl.model.plan import OpenHandover
from slurm_dl.placement.resource_request import ResourceRequests
from slurm_dl.policies.arithmetic.supply_and_demand import gpus_by_type, type_held
from slurm_dl.policies.discrete_las import DiscreteLas
from slurm_dl.simulation.cluster_shape import parse_shape
from slurm_dl.simulation.ideal.simulator import simulate
from slurm_dl.simulation.job_knowledge import TraceKnowledge

TWO_TYPES = "gpu:a100:2,gpu:h100:2"
MIG = "gpu:a100:2(S:0),gpu:a100_1g.10gb:4(S:0)"
A100, H100, SLICE = "gres:gpu:a100:", "gres:gpu:h100:", "gres:gpu:a100_1g.10gb:"


def running(job_id: int, gres: str, **more: str) -> dict[str, str]:
    """A job on node n1 that has opted in."""
    return (
        VICTIM
        | words(
            f"JobID={job_id} JobArrayID={job_id} NumNodes=1 NumTasks=1 NumCPUs=1 NodeList=n1 "
            f"tres-alloc=cpu=1,node=1 tres-per-node={gres}"
        )
        | more
    )


def keeps(job_id: int, gres: str) -> dict[str, str]:
    """One that has not."""
    return running(job_id, gres, Comment="(null)")


def detail(job_id: int, gres: str) -> str:
    return (
        f"JobId={job_id} JobName=x JOB_GRES=gpu:1 Nodes=n1 CPU_IDs=0 Mem=0 GRES={gres}(IDX:0) x=1\n"
    )


def cycle(
    gres: str, jobs: Sequence[Mapping[str, str]], waits: str, told: str = "", **more: object
) -> Cycle:
    """A decision: *jobs* are on n1, which has *gres*, job 2 waits for *waits*, n2 is down."""
    one = {"NumNodes": "1", "NumTasks": "1", "NumCPUs": "1", "tres-alloc": "cpu=1,node=1"}
    cluster: dict[str, Any] = {
        "nodes": {"n1": {"Gres": gres}, "n2": {"StateComplete": "down", "Gres": gres}}
    }
    return decided(
        **cluster,
        victim=jobs[0],
        more=list(jobs[1:]),
        waits=one | {"tres-per-node": waits},
        job=told,
        **more,
    )


def opened_by(of: Cycle) -> list[Handover]:
    return [d.action.handover for d in of.done if isinstance(d.action, OpenHandover)]


def victims(of: Cycle) -> list[int]:
    return sorted(v.run.job_id for handover in opened_by(of) for v in handover.victims)


WHO_GIVES_WAY: dict[str, tuple[str, list[dict[str, str]], str, str, list[int]]] = {
    "the other type would not help": (
        *(TWO_TYPES, [running(1, f"{H100}2"), keeps(3, f"{A100}2")], f"{A100}2", "", []),
    ),
    "the second type for the second": (
        *(TWO_TYPES, [running(1, f"{H100}2"), keeps(3, f"{A100}2")], f"{H100}2", "", [1]),
    ),
    "the one of the right type of two": (
        *(TWO_TYPES, [running(1, f"{H100}2"), running(3, f"{A100}2")], f"{A100}1", "", [3]),
    ),
    "any type will do": (
        *(TWO_TYPES, [running(1, f"{H100}2"), keeps(3, f"{A100}2")], "gres:gpu:2", "", [1]),
    ),
    "any types, more than there are of one": (
        *(TWO_TYPES, [running(1, f"{H100}2"), running(3, f"{A100}2")], "gres:gpu:3", "", [1, 3]),
    ),
    "there is room on the other type": (
        *(TWO_TYPES, [running(1, f"{H100}2")], f"{A100}2", "", []),
    ),
    "a victim that asked for any type has the wrong one": (
        TWO_TYPES,
        [running(1, "gres:gpu:2"), keeps(3, f"{A100}2")],
        f"{A100}2",
        detail(1, "gpu:h100:2"),
        [],
    ),
    "a victim that asked for any type has the right one": (
        TWO_TYPES,
        [running(1, "gres:gpu:2"), keeps(3, f"{H100}2")],
        f"{A100}2",
        detail(1, "gpu:a100:2"),
        [1],
    ),
    "a victim that asked for any type has both": (
        TWO_TYPES,
        [running(1, "gres:gpu:4")],
        f"{H100}1",
        detail(1, "gpu:a100:2,gpu:h100:2"),
        [1],
    ),
    "a slice for a slice": (
        *(MIG, [running(1, f"{SLICE}4"), keeps(3, f"{A100}2")], f"{SLICE}1", "", [1]),
    ),
    "no slice for a whole GPU": (
        *(MIG, [running(1, f"{SLICE}4"), keeps(3, f"{A100}2")], f"{A100}1", "", []),
    ),
    "more of a type than the node has": (
        *(TWO_TYPES, [running(1, "gres:gpu:4")], f"{A100}3", detail(1, TWO_TYPES), []),
    ),
    "both types by name": (
        TWO_TYPES,
        [running(1, "gres:gpu:4")],
        f"{A100}1,{H100}1",
        detail(1, TWO_TYPES),
        [],
    ),
}


@pytest.mark.parametrize("row", WHO_GIVES_WAY.values(), ids=WHO_GIVES_WAY)
def test_who_gives_way(row: tuple[str, list[dict[str, str]], str, str, list[int]]) -> None:
    """A job is stopped only where its GPUs are of a type that the waiting job takes."""
    gres, jobs, waits, told, expected = row

    assert victims(cycle(gres, jobs, waits, told)) == expected


def test_what_is_counted_of_each_type() -> None:
    """The supply and what jobs hold, of a job that asked for any type, too."""
    jobs = [running(1, "gres:gpu:3"), keeps(3, f"{H100}1")]
    of = cycle(TWO_TYPES, jobs, f"{A100}2", detail(1, "gpu:a100:1,gpu:h100:1"))
    snap = of.snapshot

    assert gpus_by_type(snap).tolist() == [2, 2]
    # It asked for three, and holds what its details tell.
    assert snap.seen.held.by_type.tolist() == [[1, 0], [1, 1]]
    assert type_held(snap.seen).tolist()[-1] == snap.seen.gpu_types.index("h100")


def test_fit_is_what_trying_every_way_finds() -> None:
    """Brute force over all that may be free of two types, and all requests."""
    kinds = {"gres:gpu:": (0, 1), A100: (0,), H100: (1,)}
    for held_a, held_h, (ask, of), n in itertools.product(
        range(3), range(3), kinds.items(), range(1, 5)
    ):
        jobs = [
            keeps(9 - i, f"{name}{count}")
            for i, (name, count) in enumerate(((A100, held_a), (H100, held_h)))
            if count
        ]
        snap = cycle(TWO_TYPES, jobs or [keeps(1, "")], f"{ask}{n}").snapshot
        free = (2 - held_a, 2 - held_h)
        row = snap.jobs.row_of()[JobId(2)]
        need = ResourceRequests(snap).of(row)
        found = need.allowed.any() and FreeResources.free_in(snap).place(need) is not None
        most = sum(free[k] for k in of)
        assert bool(found) == (n <= most and need.n_nodes == 1), (held_a, held_h, ask, n)


WEIGHTS = {"a100_1g.10gb": 0.25, "h100": 2.0}


@pytest.mark.parametrize(
    ("gres", "asks", "told", "gpus"),
    [
        (MIG, f"{SLICE}4", "", 1.0),
        (MIG, f"{A100}2", "", 2.0),
        (TWO_TYPES, f"{H100}2", "", 4.0),
        (TWO_TYPES, "gres:gpu:3", detail(1, "gpu:a100:2,gpu:h100:1"), 4.0),
        ("gpu:h100:4", "gres:gpu:3", "", 6.0),
        ("gpu:4", "gres:gpu:3", "", 3.0),
    ],
)
def test_a_gpu_counts_as_the_weight_of_its_type(
    gres: str, asks: str, told: str, gpus: float
) -> None:
    """In attained service, in when a job sinks next, and in what a hand-over takes back."""
    of = cycle(
        gres, [running(1, asks)], f"gres:gpu:{4 if gres != MIG else 6}", told, weights=WEIGHTS
    )
    snap, ran_s = of.snapshot, 1000.0
    row = snap.jobs.row_of()[JobId(1)]

    assert snap.memory.attained_gpu_s[row] == pytest.approx(ran_s * gpus)
    assert [v.gpus for h in opened_by(of) for v in h.victims] == [gpus]
    policy = DiscreteLas(thresholds_gpu_s=(60.0, 8000.0))
    runs = np.arange(len(snap.jobs)) == row
    sinks_s = policy.next_change_s(snap, policy.order(snap), runs) - snap.now_s
    assert sinks_s * gpus == pytest.approx(8000.0 - ran_s * gpus)


def test_weights_cost_nothing_where_there_are_none() -> None:
    """The column of the jobs itself is used."""
    seen = cycle(TWO_TYPES, [running(1, f"{A100}2")], f"{A100}1").snapshot.seen
    assert seen.weighted_gpus() is seen.jobs.gpus


def simulated(policy: str, shape: str) -> list[float]:
    """When each of 40 jobs ends, of 1 to 4 GPUs; V100s are half as fast."""
    draw = np.random.default_rng(7)
    trace = make_trace(
        np.sort(draw.uniform(0, 3000, 40)).tolist(),
        draw.uniform(100, 3000, 40).tolist(),
        gpus=draw.choice([1.0, 2.0, 4.0], 40).tolist(),
    )
    there = parse_shape(shape)
    rates = Oracle(gpu_speed={"a100": 1.0, "v100": 0.5}).speeds(trace, there, {}).rates
    made = Config.model_validate({"manage": {"partitions": ["gpu"]}, "policy": {"order": policy}})
    return simulate(
        trace, there, made.policy.make(), known=TraceKnowledge(rates=rates)
    ).records.end_s.tolist()


@pytest.mark.parametrize("how", [["--costs", "slurm"], ["--place", "consolidate"]])
def test_jobs_of_any_type_fill_simulated_nodes_of_two_types(how: list[str], tmp_path: Path) -> None:
    """As they fill nodes of one type: under a simulated Slurm, and on nodes."""
    trace = str(Path(__file__).parents[2] / "traces" / "tiresias" / "60_job.csv")
    told = []
    for shape in ("4x2:a100+2:v100", "4x4"):
        out = tmp_path / shape.replace(":", "_")
        words = ["run", trace, "--cluster", shape, "--policy", "discrete_las", *how]
        done = CliRunner().invoke(dlsim, [*words, "--jobs-csv", str(out)])
        assert done.exit_code == 0, done.output
        told.append(out.read_text())
    assert told[0] == told[1]


@pytest.mark.parametrize("policy", ["fifo_skip", "gavel_fifo", "gavel_max_min", "las"])
def test_simulated_nodes_of_two_types_serve_as_two_nodes_of_one_type_each(policy: str) -> None:
    """Where GPUs are only counted, by type, it does not matter which nodes they are in."""
    assert simulated(policy, "4x2:a100+2:v100") == simulated(policy, "4x2:a100,4x2:v100")
    assert simulated(policy, "4x2:a100+2:v100") != simulated(policy, "4x4:a100+1:v100")

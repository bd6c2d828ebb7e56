"""CPUs and memory beside GPUs: the part of the node, what the model can use, what fits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.model.profile import HostRate, Profile
from slurm_dl.placement.synergy import Host
from slurm_dl.slurm.read.grammar import UsableNode
from slurm_dl.submit import job_shape
from slurm_dl.submit.host_resources import Silence, Wanted, directives, kinds, left_to_us, usable
from slurm_dl.submit.job_shape import GpuNode, GpuPartition

ALL = Silence(cpus=True, memory=True)
HUNGRY = Profile(name="hungry", host=(HostRate(cpus_per_gpu=10, mem_mb_per_gpu=20_000, rate=1.0),))


def node(
    gpus: int = 4, cpus: int = 16, mem_mb: int = 64_000, *, threads: int = 1, name: str = "n1"
) -> GpuNode:
    host = Host(gpus=gpus, cpus=cpus, mem_mb=mem_mb)
    return GpuNode(
        gpu_type="a100",
        gpus=gpus,
        up=True,
        name=name,
        shards=gpus * 2,
        host=host,
        threads=threads,
    )


def even(partition: GpuPartition, gpus: int) -> job_shape.JobShape:
    return job_shape.choose([partition], gpus=gpus, gpu_type=None, nodes=None)


def part(*nodes: GpuNode) -> GpuPartition:
    return GpuPartition(name="gpu", nodes=nodes)


@pytest.mark.parametrize(
    ("gpus", "tasks", "profile", "expected"),
    [
        (1, 1, None, ("--cpus-per-task=4", "--mem=16000M")),
        (3, 1, None, ("--cpus-per-task=12", "--mem=48000M")),
        (4, 4, None, ("--cpus-per-task=4", "--mem=64000M")),
        (1, 1, HUNGRY, ("--cpus-per-task=10", "--mem=20000M")),
        (4, 1, HUNGRY, ("--cpus-per-task=16", "--mem=64000M")),
        (1, 8, None, ("--mem=16000M",)),
    ],
)
def test_a_fixed_shape(
    gpus: int, tasks: int, profile: Profile | None, expected: tuple[str, ...]
) -> None:
    """Tasks share the CPUs; a model's wish counts as far as the node has it."""
    wanted = even(part(node()), gpus)

    assert directives(wanted, [node()], ALL, tasks_per_node=tasks, profile=profile) == expected


def test_it_fits_on_every_kind_of_node() -> None:
    """The least of all parts is asked for; cores are not divided, and Slurm may not round up."""
    nodes = [node(cpus=24), node(cpus=14, mem_mb=48_000, threads=2)]
    wanted = even(part(*nodes), 2)

    asked = directives(wanted, nodes, ALL, tasks_per_node=1)

    assert asked == ("--cpus-per-task=6", "--mem=24000M")


def test_a_range_of_nodes_gets_each_gpus_part() -> None:
    """A node may give all its GPUs, so a model's wish for more would keep some of them away."""
    wanted = job_shape.choose_range([part(node(), node())], gpus=5, gpu_type=None, least=1, most=2)

    asked = directives(wanted, [node()], ALL, tasks_per_node=1, profile=HUNGRY)
    unknown = directives(wanted, [], ALL, tasks_per_node=1)

    assert asked == ("--cpus-per-gpu=4", "--mem-per-gpu=16000M")
    assert unknown == ("--cpus-per-gpu=1",)


def test_half_a_gpu_gets_half_its_part() -> None:
    wanted = job_shape.choose_half([part(node())], gpu_type=None)

    assert directives(wanted, [node()], ALL, tasks_per_node=1) == (
        "--cpus-per-task=2",
        "--mem=8000M",
    )


def test_as_many_cpus_as_the_owner_says() -> None:
    """For each GPU; what is not known of the nodes does not matter then."""
    wanted = even(part(node()), 2)

    assert directives(wanted, [], ALL, tasks_per_node=2, cpus_per_gpu=6) == ("--cpus-per-task=6",)


def test_nodes_that_slurm_knows_little_of() -> None:
    """No CPUs, no memory: nothing is asked for. 1 MB is what Slurm has where nobody told it."""
    wanted = even(part(node(cpus=0, mem_mb=1)), 1)

    assert directives(wanted, [node(cpus=0, mem_mb=1)], ALL, tasks_per_node=1) == ()
    assert directives(wanted, [], ALL, tasks_per_node=1) == ()


@pytest.mark.parametrize(
    ("sbatch", "kept", "cpus", "expected"),
    [
        ((), (), "auto", (True, True)),
        (("--account=x",), ("SBATCH_ACCOUNT",), "auto", (True, True)),
        (("--cpus-per-task=3",), (), "auto", (False, True)),
        (("--mem=3G",), (), "auto", (True, False)),
        (("--mem-per-cpu=3G",), (), "auto", (False, False)),
        (("--exclusive",), (), "auto", (False, False)),
        ((), ("SBATCH_MEM_PER_NODE",), "auto", (True, False)),
        ((), ("SBATCH_CPUS_PER_GPU",), "auto", (False, True)),
        ((), (), "none", (False, False)),
        ((), (), 8, (True, True)),
    ],
)
def test_what_the_owner_says_wins(
    sbatch: Sequence[str], kept: Sequence[str], cpus: int | str, expected: tuple[bool, bool]
) -> None:
    silence = left_to_us(sbatch, kept, cpus)

    assert (silence.cpus, silence.memory) == expected


def test_one_node_of_each_kind_is_looked_at() -> None:
    """Only of those the job may get; with what the node keeps for itself taken off."""
    small, wide = node(gpus=2), node(gpus=4, name="n3")
    partition = part(small, wide, node(gpus=4, name="n4"))

    asked = kinds([partition], even(partition, 3))
    left = usable(asked, {"n3": UsableNode(12, 60_000, 0)})

    assert [n.name for n in asked] == ["n3"]
    assert [n.host for n in left] == [Host(gpus=4, cpus=12, mem_mb=60_000)]


hosts = st.builds(
    node,
    gpus=st.integers(1, 8),
    cpus=st.integers(0, 200),
    mem_mb=st.integers(0, 2_000_000),
    threads=st.sampled_from([1, 2]),
)


@given(st.lists(hosts, min_size=1, max_size=4), st.integers(1, 8), st.booleans())
def test_what_is_asked_for_is_on_every_node_it_may_get(
    nodes: list[GpuNode],
    gpus: int,
    known: bool,  # noqa: FBT001
) -> None:
    """And leaves each other GPU its part, unless the model can use more than the job's own."""
    widest = max(n.gpus for n in nodes)
    wanted: Wanted = even(part(*nodes), min(gpus, widest))
    fitting = [n for n in nodes if wanted.may_use(n)]
    asked = directives(wanted, fitting, ALL, tasks_per_node=1, profile=HUNGRY if known else None)
    got = dict(option.removeprefix("--").split("=") for option in asked)
    cpus, mem_mb = int(got.get("cpus-per-task", 0)), int(got.get("mem", "0M")[:-1])
    each = wanted.gpus // wanted.nodes
    for n in fitting:
        assert cpus <= n.host.cpus
        assert mem_mb <= n.host.mem_mb
        if not known:
            assert cpus * n.host.gpus <= n.host.cpus * each
            assert mem_mb * n.host.gpus <= n.host.mem_mb * each

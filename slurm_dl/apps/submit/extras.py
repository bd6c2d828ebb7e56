"""What a job gets beside its shape: CPUs, memory, few switches, time to be placed, NCCL's settings.

All of it only where the user said nothing of it, and each with a note where it may surprise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_dl.apps.submit import host_demand, slurm_calls, switches
from slurm_dl.apps.submit.host_demand import Wanted
from slurm_dl.apps.submit.request import Request, given
from slurm_dl.apps.submit.script import Extras, tasks_per_node
from slurm_dl.apps.submit.shape import Partition, Shape
from slurm_dl.apps.submit.site import Site
from slurm_dl.apps.submit.told import told
from slurm_dl.apps.submit.values import shown
from slurm_dl.model.errors import ClusterError
from slurm_dl.model.profile import Profile

_NCCL = re.compile(r"NCCL_[A-Z0-9_]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What there is to find it out from.

    Attributes:
        partitions: Where the job may run.
        site: The site's choices.
        profile: What is known of the model; None if nothing.
        kept: Names of the variables that sbatch gets.
        environ: The environment for calls to Slurm.
    """

    partitions: Sequence[Partition]
    site: Site
    profile: Profile | None
    kept: frozenset[str]
    environ: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was found out.

    Attributes:
        extras: For the job.
        notes: For its owner, one line each.
    """

    extras: Extras
    notes: tuple[str, ...]


def find(request: Request, wanted: Wanted, known: Known) -> Found:
    """What *request* gets beside its shape *wanted*."""
    notes: list[str] = []
    directives, told_of = _host_share(request, wanted, known, notes)
    args = (*_switches(request, wanted, known, notes), *_begin(request, known, notes))
    nccl = _nccl(known.profile, notes)
    return Found(
        extras=Extras(args=args, directives=directives, nccl=nccl, told=told_of),
        notes=tuple(notes),
    )


def _host_share(
    request: Request, wanted: Wanted, known: Known, notes: list[str]
) -> tuple[tuple[str, ...], Mapping[str, int]]:
    """Directives for CPUs and memory, and what the daemon is to be told of them."""
    silence = host_demand.left_to_us(request.sbatch, known.kept, request.cpus)
    tasks = tasks_per_node(request, wanted)
    if not silence:
        return (), told(wanted, (), silence, request.sbatch, tasks_per_node=tasks)
    nodes = host_demand.kinds(known.partitions, wanted)
    names = [node.name for node in nodes if node.name]
    limit = host_demand.UNLIMITED
    if names:
        try:
            nodes = host_demand.usable(nodes, slurm_calls.read_usable(names, known.environ))
            if silence.memory:
                at = [partition.name for partition in known.partitions]
                limit = slurm_calls.read_memory_limit(at, known.environ)
        except ClusterError as err:
            notes.append(f"CPUs and memory are left to Slurm: {err}")
            nodes = ()
    directives = host_demand.directives(
        wanted,
        nodes,
        silence,
        tasks_per_node=tasks,
        profile=known.profile,
        cpus_per_gpu=request.cpus if isinstance(request.cpus, int) else None,
        limit=limit,
    )
    options = (*directives, *request.sbatch)
    if isinstance(request.cpus, int):
        silence = replace(silence, cpus=False)  # The owner has said how many.
    return directives, told(wanted, nodes, silence, options, tasks_per_node=tasks)


def _switches(request: Request, wanted: Wanted, known: Known, notes: list[str]) -> tuple[str, ...]:
    if not isinstance(wanted, Shape) or given(request.sbatch, {"switches"}):
        return ()
    for_s = switches.wait_s(wanted, known.profile, known.site)
    if not for_s or "SBATCH_REQ_SWITCH" in known.kept:
        return ()
    try:
        fewest = switches.fewest(wanted, known.partitions, slurm_calls.read_topology(known.environ))
        if fewest is None:
            return ()
        longest_s = slurm_calls.read_longest_switch_wait_s(known.environ)
    except ClusterError:
        return ()  # As where no topology is configured.
    many = f"{fewest} switches" if fewest > 1 else "one switch"
    if longest_s < for_s:
        notes.append(
            f"it waits {longest_s:.0f} s for nodes of {many}, not the site's {for_s:.0f} s: Slurm's"
            " max_switch_wait allows no more"
        )
        for_s = longest_s
    else:
        notes.append(f"it waits up to {for_s:.0f} s for nodes of {many}; --switches=N@TIME wins")
    return (switches.option(fewest, for_s),) if for_s else ()


def _begin(request: Request, known: Known, notes: list[str]) -> tuple[str, ...]:
    settle_s = known.site.settle_s
    theirs = given(request.sbatch, {"begin"}) is not None or "SBATCH_BEGIN" in known.kept
    managed = any(partition.name in known.site.partitions for partition in known.partitions)
    if not settle_s or theirs or not managed:
        return ()
    seconds = int(-(-settle_s // 1))
    notes.append(f"it may start in {seconds} s: until then the scheduler looks for its nodes")
    return (f"--begin=now+{seconds}",)


def _nccl(profile: Profile | None, notes: list[str]) -> Mapping[str, str]:
    """What the profile names; nothing is guessed."""
    settings = {} if profile is None else dict(profile.nccl)
    wrong = [
        name
        for name, value in settings.items()
        if not _NCCL.fullmatch(name) or not value.isprintable()
    ]
    for name in wrong:
        notes.append(f"the profile's setting {shown(name)} is not one of NCCL; it is left out")
        del settings[name]
    return settings

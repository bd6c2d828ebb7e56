"""What a job gets beside its shape: CPUs, memory, few switches, time to be placed, NCCL's settings.

All of it only where the user said nothing of it, and each with a note where it may surprise.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_dl.client_config import ClientConfig
from slurm_dl.job.rank_order import is_tree, leaves
from slurm_dl.model.contract import MOST_SIZES
from slurm_dl.model.errors import ClusterError, ConfigError
from slurm_dl.model.profile import Profile, skew_of
from slurm_dl.model.shape import Shape, by_gpus
from slurm_dl.placement.synergy import Share, proportional
from slurm_dl.slurm.read.grammar import read_usable
from slurm_dl.slurm.tool_runner import Slurm
from slurm_dl.submit import host_resources, job_comment, job_shape, slurm_calls
from slurm_dl.submit.batch_script import Extras, tasks_per_node
from slurm_dl.submit.data_flag import FIRST_LOOK_S
from slurm_dl.submit.host_resources import Silence, Wanted
from slurm_dl.submit.job_request import JobRequest
from slurm_dl.submit.job_shape import GpuNode, GpuPartition, JobShape, NodeRange
from slurm_dl.submit.sbatch_options import given
from slurm_dl.text import duration, shown

_NCCL = re.compile(r"NCCL_[A-Z0-9_]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFacts:
    """What there is to find it out from."""

    partitions: Sequence[GpuPartition]  # Where the job may run
    site: ClientConfig  # The site's choices
    profile: Profile | None  # What is known of the model; None if nothing
    kept: frozenset[str]  # Names of the variables that sbatch gets
    slurm: Slurm  # Whom to ask


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExtras:
    """What was found out."""

    extras: Extras  # For the job
    notes: tuple[str, ...]  # For its owner, one line each


def find(request: JobRequest, wanted: Wanted, known: SiteFacts) -> JobExtras:
    """What *request* gets beside its shape *wanted*."""
    notes: list[str] = []
    directives, told_of = _host_share(request, wanted, known, notes)
    more = wanted.more if isinstance(wanted, JobShape) else ()
    of_more = tuple(_host_share(request, part, known, notes)[0] for part in more)
    told_of = {} if more else told_of
    args = (*_switches(request, wanted, known, notes), *_begin(request, known, notes))
    nccl = _nccl(known.profile, notes)
    return JobExtras(
        extras=Extras(args=args, directives=directives, of_more=of_more, nccl=nccl, told=told_of),
        notes=tuple(notes),
    )


def _host_share(
    request: JobRequest, wanted: Wanted, known: SiteFacts, notes: list[str]
) -> tuple[tuple[str, ...], Mapping[str, int]]:
    """Directives for CPUs and memory, and what the daemon is to be told of them."""
    silence = host_resources.left_to_us(request.sbatch, known.kept, request.cpus)
    tasks, elastic = tasks_per_node(request, wanted), bool(request.sizes)
    if not silence:
        return (), told(wanted, (), silence, request.sbatch, tasks_per_node=tasks, elastic=elastic)
    sizes = shapes(request)
    least = wanted
    if isinstance(wanted, JobShape):
        least = least_of(request, wanted, known.partitions)
    nodes = host_resources.kinds(known.partitions, least)
    names = [node.name for node in nodes if node.name]
    limit = host_resources.UNLIMITED
    if names:
        try:
            shown = known.slurm.run(
                "scontrol", "--all", "--oneliner", "show", "node", ",".join(names)
            )
            nodes = host_resources.usable(nodes, read_usable(shown))
            if silence.memory:
                at = [partition.name for partition in known.partitions]
                limit = slurm_calls.read_memory_limit(at, known.slurm)
        except ClusterError as err:
            notes.append(f"CPUs and memory are left to Slurm: {err}")
            nodes = ()
    directives = host_resources.directives(
        wanted,
        nodes,
        silence,
        tasks_per_node=tasks,
        profile=known.profile,
        cpus_per_gpu=request.cpus if isinstance(request.cpus, int) else None,
        limit=limit,
        most_gpus=max((size.gpus_per_node for size in sizes), default=None),
    )
    options = (*directives, *request.sbatch)
    if isinstance(request.cpus, int):
        silence = replace(silence, cpus=False)  # The owner has said how many.
    return directives, told(wanted, nodes, silence, options, tasks_per_node=tasks, elastic=elastic)


def _switches(
    request: JobRequest, wanted: Wanted, known: SiteFacts, notes: list[str]
) -> tuple[str, ...]:
    if not isinstance(wanted, JobShape) or given(request.sbatch, {"switches"}):
        return ()
    for_s = wait_s(wanted, known.profile, known.site)
    if not for_s or "SBATCH_REQ_SWITCH" in known.kept:
        return ()
    try:
        topology = known.slurm.run("scontrol", "show", "topology")
        fewest = fewest_switches(wanted, known.partitions, topology)
        if fewest is None:
            return ()
        longest_s = slurm_calls.read_longest_switch_wait_s(known.slurm)
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
    return (option(fewest, for_s),) if for_s else ()


def _begin(request: JobRequest, known: SiteFacts, notes: list[str]) -> tuple[str, ...]:
    site = known.site
    # In whatever size it asks for Slurm would start it before the daemon has seen it.
    settle_s = max(site.settle_s, site.sizes_settle_s if request.sizes else 0.0)
    settle_s = max(settle_s, FIRST_LOOK_S if request.wait_for_data else 0.0)
    theirs = given(request.sbatch, {"begin"}) is not None or "SBATCH_BEGIN" in known.kept
    managed = any(partition.name in known.site.partitions for partition in known.partitions)
    if not settle_s or theirs or not managed:
        return ()
    seconds = int(-(-settle_s // 1))
    looked_for = "its nodes" if site.settle_s else "its size" if request.sizes else "its data flag"
    notes.append(f"it may start in {seconds} s: until then the scheduler looks for {looked_for}")
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


# How few leaf switches a job of several nodes asks for, and how long it waits for so few.
#
# Only on a topology of switches: on one of blocks Slurm heeds no such wish. Jobs whose model sends
# one large tensor are the ones that gain (Tiresias, NSDI 2019, section 3.3).
def wait_s(shape: JobShape, profile: Profile | None, at_site: ClientConfig) -> float:
    """Seconds that the job should wait for the fewest switches; 0 if it need not."""
    if shape.nodes == 1 or profile is None:
        return 0.0
    skew = profile.skew
    if skew is None and profile.tensors_mb:
        skew = skew_of(profile.tensors_mb)
    if skew is None or skew <= at_site.skew_threshold:
        return 0.0
    return at_site.locality_wait_s


def fewest_switches(
    shape: JobShape, partitions: Sequence[GpuPartition], topology: str
) -> int | None:
    """The fewest leaf switches that have nodes enough for the job; None if that says nothing.

    Args:
        topology: What ``scontrol show topology`` says.
    """
    if not is_tree(topology):
        return None
    leaf_of = leaves(topology)
    counts = []
    for partition in partitions:
        fitting = {n.name for n in partition.nodes if n.up and shape.may_use(n)}
        below = Counter(leaf_of[name] for name in fitting if name in leaf_of)
        room, needed = 0, 0
        for _, count in below.most_common():
            room, needed = room + count, needed + 1
            if room >= shape.nodes:
                counts.append(needed)
                break
    return min(counts, default=None)


def option(switches: int, for_s: float) -> str:
    """The argument for sbatch."""
    return f"--switches={switches}@{duration(max(1, round(for_s)))}"


_TO_MB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


def told(
    wanted: Wanted,
    nodes: Sequence[GpuNode],
    silence: Silence,
    options: Sequence[str],
    *,
    tasks_per_node: int,
    elastic: bool = False,
) -> dict[str, int]:
    """Keys of the job's metadata with their values.

    They say what the daemon has to know of a job's CPUs and memory, because Slurm does not tell it.
    Of a pending job with a range of nodes Slurm says one CPU, whatever each of its GPUs asks for.
    And that a job asks for more than its part of a node, and could do with its part, nobody says.

    Args:
        nodes: One of each kind that the job may get.
        silence: What its owner left to dlsubmit: only that may be cut.
        options: What sbatch is asked for, by dlsubmit and by the owner, as ``--name=value``.
        elastic: It may have several sizes, and has as much for each GPU in all of them.
    """
    asked = dict(option.removeprefix("--").partition("=")[::2] for option in options)
    if isinstance(wanted, NodeRange):
        each = {
            "cpus_per_gpu": _whole(asked.get("cpus-per-gpu", "")),
            "mem_mb_per_gpu": _mb(asked.get("mem-per-gpu", "")),
        }
        return {key: value for key, value in each.items() if value > 0}
    if not isinstance(wanted, JobShape):
        return {}
    if elastic:
        each = {
            "cpus_per_gpu": _whole(asked.get("cpus-per-task", "")) // wanted.gpus_per_node,
            "mem_mb_per_gpu": _mb(asked.get("mem", "")) // wanted.gpus_per_node
            or _mb(asked.get("mem-per-gpu", "")),
        }
        return {key: value for key, value in each.items() if value > 0}
    part = _part(wanted, nodes)
    cpus = _whole(asked.get("cpus-per-task", "")) * tasks_per_node
    least = -(-part.cpus // tasks_per_node) * tasks_per_node
    may: dict[str, int] = {}
    if silence.cpus and 0 < least < cpus:
        may["cpus"] = least
    if silence.memory and 0 < part.mem_mb < _mb(asked.get("mem", "")):
        may["mem_mb"] = part.mem_mb
    return may


def _part(wanted: JobShape, nodes: Sequence[GpuNode]) -> Share:
    """The largest part of any node that goes with the job's GPUs there."""
    parts = [
        proportional(n.host, wanted.gpus_per_node)
        for n in nodes
        if n.host is not None and n.host.gpus >= wanted.gpus_per_node
    ]
    return Share(max((p.cpus for p in parts), default=0), max((p.mem_mb for p in parts), default=0))


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0


def _mb(text: str) -> int:
    unit = text[-1:].upper()
    number = text[:-1] if unit in _TO_MB else text
    return int(_whole(number) * _TO_MB.get(unit, 1.0))


_NEAR_NAMES = 5


def find_profile(model: str, profile_dir: Path) -> tuple[Profile | None, str]:
    """The profile that a job's ``--model`` names, and what its owner should know about it.

    Raises:
        ConfigError: The site has profiles, and this name is none of them.
    """
    from slurm_dl.profiles import (  # noqa: PLC0415 - YAML: only where a model is named
        load_profiles,
        shipped_profiles,
        site_over,
    )

    own: Mapping[str, Profile] = {}
    try:
        if _is_open(profile_dir):
            own = load_profiles(profile_dir, reader="user")
        known = site_over(shipped_profiles(), own)
    except ConfigError as err:
        first = str(err).partition("\n")[0]
        return None, f"profiles of models are not used: {first}"
    profile = known.get(model)
    if profile is not None:
        return profile, ""
    if model.startswith(job_comment.TAG):
        return None, (
            f"without --model it is model {model}: it is put beside another job only once runs of"
            " this command have been measured (dlctl profile learn)"
        )
    near = difflib.get_close_matches(model, sorted(known), n=_NEAR_NAMES)
    hint = f"near it: {', '.join(near)}" if near else "dlctl profile list shows them"
    if own:
        msg = f"--model: there is no profile {shown(model)}; {hint}"
        raise ConfigError(msg)
    return None, f"there is no profile {shown(model)}, so it only names the model; {hint}"


def _is_open(directory: Path) -> bool:
    try:
        return directory.is_dir()
    except OSError:  # A directory above it is closed.
        return False


def lay_out(
    request: JobRequest,
    wanted: Wanted,
    partitions: Sequence[GpuPartition],
    kept: Collection[str] = (),
) -> JobRequest:
    """*request* with all its sizes as shapes, fewest GPUs first, in its comment too.

    Args:
        wanted: The shape that it is submitted with; it is one of its sizes.
        partitions: Where it may run.
        kept: Names of the variables that sbatch gets.

    Raises:
        ConfigError: One of them does not fit, they are too many, or the comment is too long.
    """
    if not request.sizes or not isinstance(wanted, JobShape):
        return request
    if "SBATCH_EXCLUSIVE" in kept:
        msg = "--sizes cannot go with SBATCH_EXCLUSIVE: a size takes its part of each node"
        raise ConfigError(msg)
    asked = Shape(wanted.nodes, wanted.gpus_per_node)
    sizes = by_gpus({asked, *(_laid(size, asked, request, partitions) for size in request.sizes)})
    if len(sizes) > MOST_SIZES:
        msg = f"--sizes: {len(sizes)} with that of --gpus, at most {MOST_SIZES}; leave some out"
        raise ConfigError(msg)
    comment = job_comment.with_sizes(
        request.comment, sizes, asked, request.batch, in_place=request.in_place
    )
    return replace(request, sizes=sizes, comment=comment)


def least_of(request: JobRequest, wanted: JobShape, partitions: Sequence[GpuPartition]) -> JobShape:
    """*wanted*, as if it asked of a node what the least of its sizes asks, on any type."""
    if not request.sizes:
        return wanted
    types = {node.gpu_type for partition in partitions for node in partition.nodes}
    each = min(size.gpus_per_node for size in shapes(request))
    fitting = wanted.types if wanted.gpu_type else tuple(sorted(types))
    return replace(wanted, gpus_per_node=each, types=fitting)


def shapes(request: JobRequest) -> tuple[Shape, ...]:
    """Its sizes, once they are laid out."""
    return tuple(size for size in request.sizes if isinstance(size, Shape))


def _laid(
    size: int | Shape, asked: Shape, request: JobRequest, partitions: Sequence[GpuPartition]
) -> Shape:
    if size in {asked.gpus, asked}:
        return asked  # --nodes has said how these lie.
    gpus, nodes = (size, None) if isinstance(size, int) else (size.gpus, size.nodes)
    try:
        found = job_shape.choose(partitions, gpus=gpus, gpu_type=request.gpu_type, nodes=nodes)
    except ConfigError as err:
        # The remedy in the words of this option.
        said = re.sub(
            r"--(gpus|nodes)=(\d+)", lambda m: _as_size(m[1], int(m[2]), gpus, nodes), str(err)
        )
        msg = f"--sizes: {size}: {said.replace('--nodes', 'nodes')}"
        raise ConfigError(msg) from None
    return Shape(found.nodes, found.gpus_per_node)


def _as_size(option: str, number: int, gpus: int, nodes: int | None) -> str:
    if option == "nodes":
        return f"{number}x{gpus // number}"
    return f"{number}" if nodes is None else f"{nodes}x{number // nodes}"

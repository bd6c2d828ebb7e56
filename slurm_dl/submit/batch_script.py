"""The batch script and sbatch's arguments: everything that is submitted, as a pure function.

What dlsubmit itself decided (shape, signal, requeue) stands in the script as ``#SBATCH`` lines,
so a stored script says what it is; these values come from small alphabets. What the user typed
(name, comment, paths, sbatch's own options) goes to sbatch as arguments ``--option=value``, which
cannot break a line and which win over the script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from slurm_dl.model.shape import Shape
from slurm_dl.submit import job_comment, script_templates
from slurm_dl.submit.host_resources import Wanted
from slurm_dl.submit.job_request import JobRequest
from slurm_dl.submit.job_shape import HalfGpu, JobShape, NodeRange
from slurm_dl.submit.shell_quoting import UserText


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What sbatch gets."""

    args: tuple[str, ...]  # Its arguments, without the program
    script: str  # The batch script, read from its standard input
    shape: Wanted  # What was asked for
    sizes: tuple[str, ...] = ()  # All sizes that it may have, NODESxGPUS; empty: that one


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What else was found out for the job.

    Attributes:
        args: Further arguments of sbatch; the user's own come after them and win.
        nccl: Settings of NCCL that its model's profile names, for the job's environment.
        told: What the daemon is told of its CPUs and memory, keys of its metadata.
    """

    args: tuple[str, ...] = ()
    directives: tuple[str, ...] = ()  # Further ``#SBATCH`` lines
    of_more: tuple[tuple[str, ...], ...] = ()  # Likewise of each further component
    nccl: Mapping[str, str] = field(default_factory=dict)
    told: Mapping[str, int] = field(default_factory=dict)


def compose(
    request: JobRequest,
    shape: Wanted,
    where: Sequence[script_templates.TemplateDirectory],
    extras: Extras | None = None,
) -> Submission:
    """Write the script and the arguments of a job.

    Raises:
        ConfigError: The template is missing or wrong.
    """
    from slurm_dl.submit.template_rendering import render  # noqa: PLC0415 - Jinja costs 20 ms

    extras = extras or Extras()
    script = render(request.template, _values(request, shape, extras), where)
    case = None if request.sweep is None else request.sweep.case()
    request.setup.check_used(script, request.template, case, request.hints)
    return Submission(
        args=_arguments(request, extras),
        script=script,
        shape=shape,
        sizes=tuple(map(str, request.sizes)),
    )


def _arguments(request: JobRequest, extras: Extras) -> tuple[str, ...]:
    comment = job_comment.with_more(request.comment, extras.told)
    given = {
        "job-name": request.name,
        "output": request.output,
        "array": request.array,
        "partition": ",".join(request.partitions) or None,
        "time": request.time,
        # Last: where the comment is full, the tag is what the daemon can do without.
        "comment": job_comment.with_more(comment, {"tag": request.tag} if request.tag else {}),
        "qos": request.qos,
    }
    ours = tuple(f"--{name}={value}" for name, value in given.items() if value is not None)
    return ("--parsable", *ours, *extras.args, *request.sbatch)


def _directives(request: JobRequest, shape: Wanted, extras: Extras) -> tuple[str, ...]:
    more: list[str] = []
    for part, found in zip(components(shape)[1:], extras.of_more, strict=True):
        # Options of the command line count for all components.
        more += ["hetjob", *_of_shape(request, part), *found]
    return (
        "--requeue" if request.requeue else "--no-requeue",
        "--open-mode=append",
        f"--signal=B:{request.signal}@{request.lead_s}",
        *_of_shape(request, shape),
        *extras.directives,
        *more,
    )


def components(shape: Wanted) -> tuple[Wanted, ...]:
    """The shapes of a heterogeneous job's components, or that of the job."""
    return (shape, *shape.more) if isinstance(shape, JobShape) else (shape,)


def _cpus_of_all(extras: Extras) -> str | None:
    """The CPUs that a task of every component has; None where nothing says so."""
    asked = [*extras.directives, *(option for part in extras.of_more for option in part)]
    cpus = [o.partition("=")[2] for o in asked if o.startswith("--cpus-per-task=")]
    return min(cpus, key=int) if len(cpus) == 1 + len(extras.of_more) else None


def _of_shape(request: JobRequest, shape: Wanted) -> tuple[str, ...]:
    match shape:
        case NodeRange():
            return (f"--nodes={shape.nodes}-{shape.most_nodes}", f"--gpus={shape.request}")
        case HalfGpu():
            gpus = f"--gres={shape.request}"
        case JobShape():
            gpus = f"--gpus-per-node={shape.request}"
    tasks = tasks_per_node(request, shape)
    return (f"--nodes={shape.nodes}", f"--ntasks-per-node={tasks}", gpus)


def tasks_per_node(request: JobRequest, shape: Wanted) -> int:
    """Tasks on each node; 1 where that is not fixed."""
    if request.ntasks_per_node is not None:
        return request.ntasks_per_node
    if request.sizes:
        return 1  # dlrun starts one for each GPU that it finds.
    return shape.gpus_per_node if request.launcher == "srun" and isinstance(shape, JobShape) else 1


def _command(request: JobRequest) -> tuple[UserText, ...]:
    """The command with what starts its container, where neither torchrun nor srun is in between."""
    command = map(UserText, request.command) if request.sweep is None else request.sweep.quoted()
    return (*map(UserText, _before_command(request)), *command)


def _before_command(request: JobRequest) -> tuple[str, ...]:
    setup = request.setup
    if request.launcher == "torchrun":
        return ()
    if request.launcher == "plain" and setup.srun_options:
        srun = ("srun", "--nodes=1", "--ntasks=1", "--relative=0")
        return (*srun, *setup.srun_options, "--")
    return setup.inside


def _values(request: JobRequest, shape: Wanted, extras: Extras) -> dict[str, object]:
    """What a template may use; users' text only as `UserText`."""
    grace_s = request.grace_s
    first = request.command[0]
    nodes = [size.nodes for size in request.sizes if isinstance(size, Shape)] or [shape.nodes]
    most_nodes = shape.most_nodes if isinstance(shape, NodeRange) else max(nodes)
    by_allocation = bool(request.sizes) or isinstance(shape, NodeRange)
    return {
        "directives": _directives(request, shape, extras),
        "launcher": request.launcher,
        **request.setup.values(),
        "container": tuple(map(UserText, request.setup.inside)),
        "srun_options": tuple(map(UserText, request.setup.srun_options)),
        "signal": request.signal,
        "grace_s": str(int(grace_s)) if grace_s == int(grace_s) else str(grace_s),
        "stops_with": request.stops_with,
        "array": request.array is not None,
        "nodes": min(nodes),
        "most_nodes": most_nodes,
        "by_allocation": by_allocation,
        "gpus_per_node": None if by_allocation else shape.gpus // shape.nodes,
        "ntasks_per_node": None if by_allocation else tasks_per_node(request, shape),
        "shared": isinstance(shape, HalfGpu),
        "het_group": ",".join(str(i) for i, _ in enumerate(request.hints.parts)),
        "het_cpus": _cpus_of_all(extras) if request.hints.parts else None,
        "hints": list(request.hints.variables.items()),
        "nccl": [(name, UserText(value)) for name, value in sorted(extras.nccl.items())],
        "is_python_script": first == "-m" or PurePath(first).suffix == ".py",
        "dlrun": UserText(request.dlrun),
        "run_base": UserText(request.run_base),
        "model": None if request.model is None else UserText(request.model),
        "batch": request.batch if request.sizes else None,
        "name": UserText(request.name),
        "sweep": None if request.sweep is None else request.sweep.case(),
        "command": _command(request),
    }

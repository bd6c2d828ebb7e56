"""One validated request: what the user wants, after every value has been looked at."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import PurePath
from types import MappingProxyType
from typing import Literal, cast, get_args

from slurm_dl.job.run_files import RUNS_NAME
from slurm_dl.model.contract import DEFAULT_GRACE_S, Batch, Contract, Requeuer
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.shape import Shape
from slurm_dl.submit import hints, job_comment, job_shape, option_values
from slurm_dl.submit.hints import HINTS
from slurm_dl.submit.job_environment import NO_SETUP, JobSetup, in_container, read_setup
from slurm_dl.submit.launch_command import (
    Launcher,
    command_words,
    default_name,
    dlrun_path,
    launcher_of,
    tasks_per_node,
)
from slurm_dl.submit.parameter_sweep import Sweep
from slurm_dl.submit.sbatch_options import given
from slurm_dl.text import shown

DEFAULT_LEAD_S = 60
DEFAULT_SIGNAL = f"USR1@{DEFAULT_LEAD_S}"
DEFAULT_GRACE = f"{DEFAULT_GRACE_S:g}"
DEFAULT_RUN_DIR = RUNS_NAME

DATA_OF_AN_ARRAY = (
    "--wait-for-data cannot go with an array: its tasks cannot be put off one by one; let it wait "
    "for the job that copies the data, by --dependency=afterok:JOB"
)
_BATCHES: dict[str, Batch] = {word: word for word in get_args(Batch)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """dlsubmit's options as they were typed; None where nothing was."""

    gpus: str | None = None
    gpu_type: str | None = None
    share: bool = False
    sizes: str | None = None
    batch: str | None = None
    in_place: bool = False
    wait_for_data: bool = False
    cpus: str = "auto"
    nodes: str | None = None
    ntasks_per_node: str | None = None
    launcher: str = "plain"
    model: str | None = None
    hint: str | None = None
    name: str | None = None
    partition: str | None = None
    time: str | None = None
    by: str | None = None
    array: str | None = None
    output: str | None = None
    run_dir: str | None = None
    comment: str | None = None
    signal: str = DEFAULT_SIGNAL
    grace: str = DEFAULT_GRACE
    stops_with: str | None = None
    requeued_by: str = "daemon"
    no_preempt: bool = False
    no_requeue: bool = False
    template: str | None = None
    dlrun: str | None = None
    module: str | None = None
    conda: str | None = None
    venv: str | None = None
    setup: str | None = None
    container: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What is to be submitted.

    Attributes:
        cpus: CPUs for each GPU; ``auto`` to find out, ``none`` for Slurm's own default.
        stops_with: Exit statuses of a command that has saved when it was asked to, beside 75, such
            as ``0``; empty: none.
        sizes: It may run in any of these: GPUs in all until they are laid on nodes; empty: as it
            asks.
        sweep: Of an array, whose first task's is the command above; None if it is no sweep.
    """

    gpus: int  # GPUs of the whole job
    gpu_type: str | None  # Only this type; None for any
    nodes: int | None  # Exactly so many, or the fewest of a range; None for the fewest that fit
    most_nodes: int | None  # The most of a range; None if there is none
    ntasks_per_node: int | None  # As asked for; None for the launcher's own number
    launcher: Launcher
    model: str | None
    name: str
    partitions: tuple[str, ...]  # Where it may run; empty for the default partition
    time: str | None  # Time limit in Slurm's words; None for the partition's own
    array: str | None
    output: str  # Pattern of the log file
    comment: str  # The whole comment, with the job's metadata
    signal: str  # Checkpoint signal, without ``SIG``
    lead_s: int  # Seconds before the time limit at which Slurm itself sends it
    grace_s: float  # Seconds that a checkpoint may take
    requeue: bool  # Slurm may put the job back into the queue
    run_base: str  # Absolute directory under which each job gets its run directory
    template: str  # Name of the script template
    dlrun: str  # Absolute path of dlrun on the compute nodes
    sbatch: tuple[str, ...]  # sbatch's options that are passed on
    command: tuple[str, ...]  # What the job runs
    qos: str | None = None  # QOS that dlsubmit chose for it; None: the user's or the account's own
    stops_with: str = ""
    share: bool = False  # Half of one GPU is all it asks for
    cpus: int | Literal["auto", "none"] = "auto"
    due_s: int | None = None  # Its deadline, epoch seconds; None if it has none
    sizes: tuple[int | Shape, ...] = ()
    batch: Batch = "fixed"  # Its global batch in another size
    in_place: bool = False  # See `Claim.in_place`
    wait_for_data: bool = False  # Its data is not there yet
    sweep: Sweep | None = None
    setup: JobSetup = NO_SETUP  # Its environment
    hints: hints.Given = hints.NO_HINTS
    tag: str = ""  # Stands for script and arguments; empty: they differ from task to task


def check(
    typed: SubmitOptions,
    *,
    sbatch: Sequence[str],
    command: Sequence[str],
    cwd: str,
    dlrun: str | None,
    qos: str | None = None,
    max_grace_s: float = math.inf,
    native: bool = False,
    sweep: Sweep | None = None,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> JobRequest:
    """Validate what was typed.

    Args:
        typed: dlsubmit's options.
        sbatch: sbatch's options, divided and checked.
        command: What the job runs.
        cwd: Directory that relative paths start from.
        dlrun: The dlrun found beside dlsubmit; None if there is none.
        qos: The site's QOS for preemptible jobs; None if it has none. The user's own wins.
        max_grace_s: The site's longest grace, seconds: a preemptible job asks for no more.
        native: Slurm itself preempts at this site.
        sweep: The job is an array of this, whose words are *command*.
        environ: The user's environment, where conda and containers are looked for.

    Raises:
        ConfigError: A value is wrong or two of them contradict each other.
    """
    if sweep is not None:
        typed = replace(typed, array=sweep.array(typed.array))
        for task in range(len(sweep.tasks)):
            command_words(sweep.replaced(task), launcher_of(typed.launcher))
        command = sweep.replaced(0)
    if typed.share:
        cpus, sbatch = job_shape.of_request(typed.cpus, sbatch)
        typed = replace(typed, cpus=cpus)
    typed, given_hints = _hinted(typed)
    gpus, gpu_type = _gpus(typed)
    nodes, most_nodes = _nodes(typed, sbatch, gpus)
    sizes, batch = _sizes(typed, sbatch, most_nodes, native=native)
    launcher = launcher_of(typed.launcher)
    signal, lead_s = option_values.signal_and_lead(typed.signal, DEFAULT_LEAD_S)
    grace_s = option_values.grace(typed.grace)
    if not typed.no_preempt:
        grace_s = min(grace_s, max_grace_s)
    array = None if typed.array is None else option_values.array_spec(typed.array)
    if typed.wait_for_data and array is not None:
        raise ConfigError(DATA_OF_AN_ARRAY)
    model = None if typed.model is None else option_values.model_name(typed.model)
    job_command = command_words(command, launcher)
    tag = job_comment.tag(job_command, cwd)
    if typed.share and model is None:
        model = tag
    run_base = _path(typed.run_dir or DEFAULT_RUN_DIR, "--run-dir", cwd)
    setup = read_setup(asdict(typed), cwd, environ)
    if typed.container is not None:
        chdir = [option for option in sbatch if option.startswith("--chdir=")]
        starts_in = _path(chdir[-1].removeprefix("--chdir="), "--chdir", cwd) if chdir else cwd
        setup = in_container(setup, typed.container, (starts_in, run_base), cwd, environ)
    template = launcher if typed.template is None else _template(typed.template)
    due_s, curve = (None, None) if typed.by is None else option_values.due_by(typed.by, time.time())
    return JobRequest(
        gpus=gpus,
        gpu_type=_gpu_type(gpu_type, typed.gpu_type),
        share=typed.share,
        nodes=nodes,
        most_nodes=most_nodes,
        cpus=_cpus(typed.cpus, sbatch),
        ntasks_per_node=tasks_per_node(typed.ntasks_per_node, launcher),
        launcher=launcher,
        model=model,
        name=default_name(command) if typed.name is None else option_values.job_name(typed.name),
        partitions=() if typed.partition is None else option_values.partition_list(typed.partition),
        time=_time(typed.time, lead_s),
        array=array,
        output=_output(typed.output, is_array=array is not None),
        comment=job_comment.comment(
            typed.comment,
            contract=_contract(typed, signal, grace_s),
            model=model,
            most_nodes=most_nodes,
            due_s=due_s,
            curve=curve,
            data_ready=not typed.wait_for_data,
            hints=given_hints,
        ),
        due_s=due_s,
        sizes=sizes,
        batch=batch,
        in_place=typed.in_place,
        wait_for_data=typed.wait_for_data,
        signal=signal,
        lead_s=lead_s,
        grace_s=grace_s,
        stops_with="" if typed.stops_with is None else option_values.statuses(typed.stops_with),
        requeue=_requeue(typed),
        run_base=run_base,
        template=template,
        dlrun=dlrun_path(typed.dlrun, dlrun),
        sbatch=tuple(sbatch),
        command=job_command,
        setup=setup,
        hints=given_hints,
        qos=None if typed.no_preempt or qos_of(sbatch) is not None else qos,
        sweep=sweep,
        tag="" if sweep is not None else tag.removeprefix(job_comment.TAG),
    )


def qos_of(sbatch: Sequence[str]) -> str | None:
    """The QOS among sbatch's options, the last if there are several; None if there is none."""
    given = [option.removeprefix("--qos=") for option in sbatch if option.startswith("--qos=")]
    return given[-1] if given else None


def _gpus(typed: SubmitOptions) -> tuple[int, str | None]:
    if typed.gpus is None and not typed.share:
        msg = "how many GPUs? give --gpus=N"
        raise ConfigError(msg)
    gpus, gpu_type = option_values.gpu_request(typed.gpus or "1")
    if typed.share and gpus != 1:
        msg = f"--share: half a GPU is for jobs of one GPU or less, not for --gpus={gpus}"
        raise ConfigError(msg)
    return gpus, gpu_type


def _nodes(typed: SubmitOptions, sbatch: Sequence[str], gpus: int) -> tuple[int | None, int | None]:
    """The number of nodes, or the fewest and the most of a range."""
    if typed.nodes is None:
        return None, None
    least, most = option_values.node_range(typed.nodes)
    if least == most:
        if typed.share and most > 1:
            msg = f"--share: half a GPU lies on one node, not on --nodes={most}"
            raise ConfigError(msg)
        return least, None
    if typed.share:
        msg = "--share: half a GPU lies on one node; leave --nodes out"
        raise ConfigError(msg)
    if typed.ntasks_per_node is not None:
        msg = (
            "--ntasks-per-node cannot go with a range of --nodes: a node may give the job any"
            " number of its GPUs; leave it out, there is one task for each GPU"
        )
        raise ConfigError(msg)
    per_task = given(sbatch, {"cpus-per-task"})
    if per_task is not None:
        msg = f"{per_task} cannot go with a range of --nodes; give the CPUs of each GPU as --cpus=N"
        raise ConfigError(msg)
    if least > gpus:
        msg = f"--nodes: {gpus} GPUs cannot lie on {least} nodes or more"
        raise ConfigError(msg)
    most = min(most, gpus)
    return least, most if most > least else None


def _sizes(
    typed: SubmitOptions, sbatch: Sequence[str], most_nodes: int | None, *, native: bool
) -> tuple[tuple[int | Shape, ...], Batch]:
    """In which sizes it can run, and what becomes of its batch there."""
    if typed.sizes is None:
        if typed.in_place:
            msg = "--in-place says how it comes to fewer of its --sizes; give them, or leave it out"
            raise ConfigError(msg)
        if typed.batch is not None:
            msg = "--batch says what --sizes do to the batch; give --sizes, or leave it out"
            raise ConfigError(msg)
        return (), "fixed"
    cpus = given(sbatch, {"cpus-per-task", "cpus-per-gpu"})
    against = {
        "--array or --sweep": (typed.array is not None, "tasks of an array have one size"),
        "--share": (typed.share, "half a GPU is one size"),
        "a range of --nodes": (most_nodes is not None, "name the sizes as NODESxGPUS"),
        "--exclusive": (given(sbatch, {"exclusive"}), "a size takes its part of each node"),
        "--ntasks-per-node": (
            typed.ntasks_per_node is not None,
            "leave it out, there is one task for each GPU",
        ),
        f"{cpus}": (cpus, "give the CPUs of each GPU as --cpus=N"),
        "this site": (native, "Slurm itself preempts here, and changes no size; leave --sizes out"),
    }
    for what, (is_so, why) in against.items():
        if is_so:
            msg = f"--sizes cannot go with {what}: {why}"
            raise ConfigError(msg)
    batch = _BATCHES.get(typed.batch or "fixed")
    if batch is None:
        msg = f"--batch: {shown(typed.batch or '')} is not {' or '.join(_BATCHES)}"
        raise ConfigError(msg)
    return option_values.sizes(typed.sizes), batch


def _hinted(typed: SubmitOptions) -> tuple[SubmitOptions, hints.Given]:
    """The hints, and *typed* with what they say.

    Raises:
        ConfigError: A hint is wrong, or another option contradicts it.
    """
    given = hints.read(typed.hint.split(",") if typed.hint else ())
    one_shape = {"sizes", "array"} if given.locked or given.parts else set()
    which = {"gpus", "gpu_type", "nodes", "ntasks_per_node", "by", "template"}
    against = sorted(one_shape | (which if given.parts else set()))
    wrong = next((name for name in against if getattr(typed, name) is not None), None)
    if one_shape and (typed.share or "-" in (typed.nodes or "")):
        wrong = wrong or ("share" if typed.share else "nodes")
    if given.parts and typed.wait_for_data:
        wrong = "wait_for_data"  # Its components cannot be put off one by one.
    if wrong:
        name = "heterog" if given.parts else "shape_locked"
        msg = f"--hint: {name} is for one job of one shape; leave out --{wrong.replace('_', '-')}"
        raise ConfigError(msg)
    if not given.parts:
        return typed, given
    if typed.launcher != HINTS["heterog"].launchers:
        msg = "--hint: heterog starts COMMAND once on each GPU of all components; --launcher=srun"
        raise ConfigError(msg)
    # Slurm does not requeue one whole.
    gpus = str(sum(gpus for _, gpus in given.parts))
    return replace(typed, gpus=gpus, no_preempt=True, no_requeue=True), given


def _cpus(typed: str, sbatch: Sequence[str]) -> int | Literal["auto", "none"]:
    cpus = option_values.cpus_for_each_gpu(typed)
    other = given(sbatch, {"cpus-per-task", "cpus-per-gpu"})
    if isinstance(cpus, int) and other is not None:
        msg = f"--cpus and {other} both say how many CPUs; give one"
        raise ConfigError(msg)
    return cpus


def _template(name: str) -> str:
    if name.startswith("_"):
        msg = f"--template: {shown(name)} is a part of other templates"
        raise ConfigError(msg)
    return option_values.plain_name(name, "--template")


def _gpu_type(in_gpus: str | None, typed: str | None) -> str | None:
    if typed is None:
        return in_gpus
    gpu_type = option_values.plain_name(typed, "--gpu-type")
    if in_gpus not in {None, gpu_type}:
        msg = f"--gpus asks for {in_gpus} and --gpu-type for {gpu_type}; give one type"
        raise ConfigError(msg)
    return gpu_type


def _time(typed: str | None, lead_s: int) -> str | None:
    if typed is not None and option_values.time_limit_s(typed) <= lead_s:
        msg = (
            f"--time={typed}: the signal would come as the job starts, {lead_s} s before its limit;"
            " give more time or a shorter --signal=SIG@LEAD"
        )
        raise ConfigError(msg)
    return typed


def _output(typed: str | None, *, is_array: bool) -> str:
    if typed is None:
        return "slurm-%A_%a.out" if is_array else "slurm-%j.out"
    if not typed:
        msg = "--output: a file name is missing"
        raise ConfigError(msg)
    return option_values.clean_text(typed, "--output")


def _contract(typed: SubmitOptions, signal: str, grace_s: float) -> Contract | None:
    if typed.requeued_by not in {"daemon", "job"}:
        msg = f"--requeued-by: {shown(typed.requeued_by)} is not daemon or job"
        raise ConfigError(msg)
    if typed.no_preempt:
        return None
    return Contract(
        signal=signal,
        target="batch",
        grace_s=grace_s,
        requeued_by=cast("Requeuer", typed.requeued_by),
    )


def _requeue(typed: SubmitOptions) -> bool:
    if typed.no_requeue and not typed.no_preempt:
        msg = "--no-requeue: a preemptible job must be requeueable; add --no-preempt"
        raise ConfigError(msg)
    return not typed.no_requeue


def _path(typed: str, what: str, cwd: str) -> str:
    option_values.clean_text(typed, what)
    return os.path.normpath(PurePath(cwd, typed))

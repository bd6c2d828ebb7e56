"""What a user may not expect of the job just described, one line each."""

from __future__ import annotations

import time

from slurm_dl.client_config import ClientConfig
from slurm_dl.submit import job_environment, job_shape, job_sizes, option_values
from slurm_dl.submit.half_gpu import HalfGpu
from slurm_dl.submit.host_resources import Wanted
from slurm_dl.submit.job_request import JobRequest, SubmitOptions, qos_of
from slurm_dl.submit.node_range import NodeRange


def notes_on(request: JobRequest, chosen: Wanted, cleaned: job_environment.Cleaned) -> list[str]:
    """What the user may not expect, one line each."""
    notes = []
    if cleaned.ignored:
        notes.append(
            f"ignored from the environment: {', '.join(cleaned.ignored)}"
            " (--keep-sbatch-env keeps those that set nothing of dlsubmit's)"
        )
    if not chosen.enough_up:
        notes.append("not enough of the nodes are up; the job will wait for them")
    most_nodes = chosen.most_nodes if isinstance(chosen, NodeRange) else chosen.nodes
    most_nodes = max([most_nodes, *(size.nodes for size in job_sizes.shapes(request))])
    if most_nodes > 1 and chosen.gpu_type is None and len(chosen.types) > 1:
        types = ", ".join(gpu_type or job_shape.UNTYPED for gpu_type in chosen.types)
        notes.append(f"the nodes may have different GPUs ({types}); give --gpu-type")
    if most_nodes > 1 and request.launcher == "plain":
        notes.append(
            f"COMMAND runs on the first of {most_nodes} nodes only; use --launcher=torchrun or"
            " srun unless it starts the others itself"
        )
    if isinstance(chosen, HalfGpu) and request.model is None:
        notes.append("it is put beside another job only if its model is known: give --model")
    if request.sizes:
        named = ", ".join(map(str, request.sizes))
        notes.append(
            f"it may run in any of {named} (nodes x GPUs): each run has the whole time limit, which"
            f" must do for {request.sizes[0]}, and COMMAND must go by the GPUs that it gets"
            + (
                " ($SLURM_NNODES, $SLURM_GPUS_ON_NODE)"
                if request.launcher == "plain"
                else f" ({request.launcher} starts one process for each)"
            )
        )
    if request.array is not None and "%a" not in request.output:
        notes.append(f"all tasks of the array write to {request.output}; use %A_%a in --output")
    if request.due_s is not None:
        at = time.strftime("%a %Y-%m-%d %H:%M", time.localtime(request.due_s))
        notes.append(f"due {at}; it is promised only where a verdict says so")
    return notes


def grace_note(request: JobRequest, typed: SubmitOptions) -> str:
    """That the grace was cut to the site's limit; empty if it was not."""
    asked_s = option_values.grace(typed.grace)
    if asked_s <= request.grace_s:
        return ""
    return (
        f"grace cut from {asked_s:g} s to {request.grace_s:g} s, the site's limit"
        " (preemption.max_grace_s): a job that asks for more is not preempted; see that its"
        " checkpoint takes no longer, or give --no-preempt"
    )


def qos_notes(request: JobRequest, at_site: ClientConfig, typed: SubmitOptions) -> list[str]:
    """What follows from the QOS for who may take the job's GPUs."""
    notes = [at_site.trouble] if at_site.trouble else []
    if not (at_site.qos and at_site.native):
        return notes
    chosen = qos_of(request.sbatch)
    inside = chosen is not None and chosen.lower() == at_site.qos.lower()
    if typed.no_preempt and inside:
        notes.append(
            f"--no-preempt has no effect in QOS {chosen}: Slurm itself preempts there; leave --qos"
            " out"
        )
    elif not typed.no_preempt and chosen is not None and not inside:
        notes.append(
            f"with --qos={chosen} the job will not give way, and nobody gives way to it: here that"
            f" is for jobs of QOS {at_site.qos} (leave --qos out)"
        )
    return notes

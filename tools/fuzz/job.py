"""What dlrun and the job's Python API read inside a user's job."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from pathlib import Path

from slurm_dl.job.checkpoint import recorded
from slurm_dl.job.comment_report import (
    PROGRESS,
    RATE,
    STEPS,
    CommentReport,
    last_memory_mb,
)
from slurm_dl.job.controller import (
    JobController,
    JobStatus,
    job_label,
    preemptions_in,
    time_left_s,
    with_ack,
    with_key,
    with_preemption,
)
from slurm_dl.job.options import parse_options
from slurm_dl.job.progress import placed
from slurm_dl.job.rank_order import find_layout, gpus_on, hosts, is_tree, leaves, switch_order
from slurm_dl.job.run_files import PROGRESS_FILE, STATE_FILE, RunId
from tools.fuzz.target import Target, a_file, argument, folder, text


class _Said(JobController):
    """A controller that has already been asked."""

    def __init__(self, described: str, topology: str) -> None:
        self._described = described
        self._topology = topology

    def standing(self) -> JobStatus:
        return JobStatus("RUNNING", 10.0, '{"slurm_dl":{"v":1}}')

    def report(
        self, key: str, value: float | Sequence[float | str] | None, *, asked: bool = False
    ) -> bool:
        del asked
        return with_key(self.standing().comment, key, value) is not None

    def described(self) -> str:
        return self._described

    def topology(self) -> str:
        return self._topology


def _comment(data: bytes) -> None:
    comment = argument(data)
    for made in (with_ack(comment, 3), with_ack(comment, None), with_key(comment, "rate", 1.5)):
        if made is not None:
            # An argument of a command has no NUL and no lone halves of characters.
            made.encode("utf-8", errors="surrogateescape")
    # The daemon has no lone halves: a comment with bytes that are no UTF-8 it leaves alone.
    told = with_preemption(text(data), 3, 2)
    if told is not None:
        told.encode()
        preemptions_in(told, 3)
    preemptions_in(comment, 3)


def _topology(data: bytes) -> object:
    said = text(data)
    is_tree(said)
    return switch_order(hosts("n[1-9]"), leaves(said)), hosts(said)


def _layout(data: bytes) -> object:
    described, _, rest = text(data).partition("\x1c")
    topology, _, tasks = rest.partition("\x1c")
    environ = {
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_TASKS_PER_NODE": tasks,
        "SLURM_NTASKS": "2",
        "SLURM_DL_RANKS": "gpu",
    }
    gpus_on(described, ["n1", "n2"])
    return find_layout(environ, "srun", _Said(described, topology))


@functools.cache
def _run_dir() -> Path:
    return folder()


def _progress(data: bytes) -> None:
    a_file(data, PROGRESS_FILE)
    last_memory_mb(_run_dir(), RunId(0, 0))
    controller = _Said("", "")
    for kind in (PROGRESS, RATE, STEPS):
        report = CommentReport(kind, _run_dir(), controller, every_s=1.0, log=lambda _: None)
        report.start(0.0, 0.0)
        for now_s in (0.0, 5.0):
            report.look(RunId(0, 0), now_s)


def _recorded(data: bytes) -> object:
    a_file(data, STATE_FILE)
    return recorded(_run_dir())


def _environment(data: bytes) -> object:
    environ = dict(argument(word).partition("=")[::2] for word in data.split(b"\n"))
    job_label(environ)
    placed(environ)
    with contextlib.redirect_stderr(None):
        return parse_options(["--", "true"], environ)


TARGETS = (
    Target(
        name="job-comment",
        parse=_comment,
        source="the job's own comment, inside the job",
        parser="job.controller.with_ack, with_key, preemptions_in",
        seeds=(b'{"slurm_dl":{"v":1,"ack":2},"x":"\\ud800"}',),
    ),
    Target(
        name="job-time-left",
        parse=lambda data: time_left_s(text(data)),
        source="squeue's time left, inside the job",
        parser="job.controller.time_left_s",
        seeds=(b"1-02:03:04", b"UNLIMITED"),
    ),
    Target(
        name="job-topology",
        parse=_topology,
        source="scontrol show topology and node lists, inside the job",
        parser="job.rank_order.leaves, hosts",
        seeds=(
            b"SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]\n",
            b"BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\n",
            b"n[01-03,7],gpu1,a[1-2]b[1-2]",
        ),
    ),
    Target(
        name="job-layout",
        parse=_layout,
        source="scontrol show job -d and topology, inside the job",
        parser="job.rank_order.find_layout, gpus_on",
        seeds=(
            (
                b"JobId=7\n     Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=gpu:a100:1(IDX:0)\n\x1c"
                b"SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n1\n\x1c1(x2)"
            ),
        ),
    ),
    Target(
        name="job-progress",
        parse=_progress,
        source="the progress file, which the user's script writes",
        parser="job.comment_report.last_memory_mb, last_part, last_progress, share_done",
        seeds=(
            b'{"restart": 0, "step": 5, "time_s": 10.5, "memory_mb": [10.5, 90]}',
            (
                b'{"restart": 0, "step": 5, "time_s": 10.5, "part": [4, 16, 1, 64, 64, 512, 8, 32],'
                b' "numbers": {"noise": 300.5}}'
            ),
        ),
    ),
    Target(
        name="job-checkpoints",
        parse=_recorded,
        own=(ValueError,),
        source="the record of checkpoints, in the job's directory",
        parser="job.checkpoint.recorded",
        seeds=(b'{"checkpoints": [{"path": "a", "step": 1}]}',),
    ),
    Target(
        name="job-environment",
        parse=_environment,
        own=(SystemExit,),
        source="the environment of a job, for dlrun",
        parser="job.options.parse_options",
        seeds=(
            b"SLURM_JOB_ID=7\nSLURM_DL_GRACE_S=120\nSLURM_DL_SIGNAL=USR1\nSLURM_RESTART_COUNT=1",
            b"SLURM_ARRAY_JOB_ID=7\nSLURM_ARRAY_TASK_ID=3\nSLURM_DL_RATE_EVERY_S=60",
        ),
    ),
)

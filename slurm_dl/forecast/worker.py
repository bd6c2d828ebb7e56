"""The process that runs forward: one question on standard input, one answer on standard output.

A process and not a thread: it takes the loop's time neither by its computing nor by its memory,
it gives way to everything else on the host (nice 10, where that may be set), and it can be ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from slurm_dl.job import tool_process
from slurm_dl.json_types import JsonObject
from slurm_dl.logging_setup import logger
from slurm_dl.model.errors import SlurmDlError
from slurm_dl.own_python import own_python

MODULE: Final = "slurm_dl.forecast.worker"
LATE_S: Final = 30.0
"""Beyond its own deadline it gets this to start, to read its input and to say what it has."""

MOST_PAST: Final = 20_000  # Of the jobs that are over the last so many are passed on


class ForecastError(SlurmDlError):
    """There is no answer; says why."""


SHORT_S: Final = 5.0  # With less time than that no step is finer than those of a thousand jobs are


def growth_for(jobs: int, deadline_s: float = math.inf) -> float:
    """How coarse a forward run with so many jobs is; see `ForwardTiming.growth`.

    A step costs in proportion to the jobs, and more runs say more of a range than finer steps.
    """
    least = 0.1 if deadline_s < SHORT_S else 0.0
    steps = ((300, 0.02), (1000, 0.05), (5000, 0.1))
    return max(least, next((g for most, g in steps if jobs <= most), 0.2))


def asked_of_worker(
    config: Any,  # noqa: ANN401 - a Config; importing it here would cost each command 0.1 s
    snapshot: Any,  # noqa: ANN401 - a Snapshot; likewise
    question: Any,  # noqa: ANN401 - a Question; likewise
    deadline_s: float,
) -> bytes:
    """What `answer` takes, as one line of JSON."""
    from slurm_dl.config.engine_settings import settings_of, with_sure_saves  # noqa: PLC0415
    from slurm_dl.forecast.forward_runs import Asked  # noqa: PLC0415 - numpy
    from slurm_dl.recording.snapshot_file import to_bytes  # noqa: PLC0415
    from slurm_dl.simulation.forward.continued_cluster import ForwardTiming  # noqa: PLC0415
    from slurm_dl.simulation.forward.initial_state import live_jobs  # noqa: PLC0415

    past = snapshot.past
    part = past.part(slice(-MOST_PAST, None))
    snapshot = dataclasses.replace(snapshot, past=part, answers={})
    preemption = config.preemption
    asked = Asked(
        snapshot=snapshot,
        order=config.policy.order,
        parameters=json.loads(config.policy.model_dump_json())["parameters"],
        settings=with_sure_saves(settings_of(config)),
        question=question,
        pace=ForwardTiming(
            poll_s=config.daemon.poll_s,
            handover_s=config.daemon.fast_poll_s + preemption.checkpoint_cost_s / 2,
            restore_s=preemption.checkpoint_cost_s / 2,
            growth=growth_for(live_jobs(snapshot.jobs), deadline_s),
        ),
        deadline_s=deadline_s,
    )
    return to_bytes(asked, Asked) + b"\n"


def run_worker(content: bytes, deadline_s: float) -> JsonObject:
    """What a process of its own answers.

    Raises:
        ForecastError: It failed, or took too long.
    """
    try:
        done = tool_process.run(
            own_python("-m", MODULE),
            content,
            timeout_s=deadline_s + LATE_S,
            cwd="/",
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        msg = f"the forward runs did not end within {deadline_s + LATE_S:.0f} s"
        raise ForecastError(msg) from None
    except OSError as err:
        msg = f"no process for the forward runs: {err.strerror}"
        raise ForecastError(msg) from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        words = done.stderr.strip().splitlines()
        # Its words may name others' jobs: they are for the log alone.
        logger().warning("forward runs failed", because=words[-1] if words else "-")
        msg = f"the forward runs failed (status {done.returncode}); dlschedd's log says why"
        raise ForecastError(msg)
    return answer


def answer(content: bytes, is_over: Callable[[], bool] = lambda: False) -> JsonObject:
    """The forecast that is asked for; `None` for an instant beyond the horizon.

    Args:
        is_over: Asked at each step; True ends it with what there is.

    Raises:
        ValueError: *content* is not what `asked_of_worker` makes.
    """
    from slurm_dl.config.tree import PolicySection  # noqa: PLC0415
    from slurm_dl.forecast.forward_runs import Asked, foresee  # noqa: PLC0415 - numpy
    from slurm_dl.recording.snapshot_file import from_bytes  # noqa: PLC0415

    asked = from_bytes(content, Asked)
    policy = PolicySection.model_validate({"order": asked.order, "parameters": asked.parameters})
    until = time.monotonic() + asked.deadline_s
    found = foresee(
        asked.snapshot,
        asked.question,
        policy=policy.make(),
        settings=asked.settings,
        pace=asked.pace,
        is_late=lambda: time.monotonic() > until or is_over(),
    )
    plain: JsonObject = _plain(dataclasses.asdict(found))
    return plain


def _plain(value: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main() -> None:
    """Entry point of the process."""
    # The unit of dlschedd does not let it: nothing may change who is scheduled how.
    with contextlib.suppress(OSError):
        os.nice(10)
    # If memory runs out it goes first: nothing depends on it.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    parent = os.getppid()
    content = sys.stdin.buffer.readline()
    # Nobody waits for what a daemon that is gone has asked.
    found = answer(content, lambda: os.getppid() != parent)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

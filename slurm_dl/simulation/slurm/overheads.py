"""What a real Slurm and its jobs cost, in seconds, as one value with a name and a source for each.

`PRODUCTION` is what an administrator wants to know about: Slurm's own defaults, and jobs that save
to a parallel file system. `SANDBOX` is a sandbox with its lively scheduler, as measured by
``tools/benchmarks/measure_slurm_costs.py``; the simulator is checked against the real thing with
it. All zero is the ideal machine of the papers.
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from slurm_dl.error_text import unknown_key
from slurm_dl.model.errors import ConfigError

_LARGEST_FILE: Final = 1_000_000
_MOST_BRACKETS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmCosts:
    """Every cost of the simulated Slurm; the defaults are those of `PRODUCTION`.

    Attributes:
        least_gap_s: Least time between the end of a cycle and the next one (dlschedd's own).
        rpc_s: One Slurm command that changes something. A signal and a requeue take two, as the
            job is looked at again first.
        writes_per_s: SiteFactors written in the long run (``writes.rate_per_s``); 0: no limit.
        ack_wait_s: A job that acknowledged and is not requeued within its grace and this long
            requeues itself (dlrun's margin).
        cred_expire_s: A requeued job may not start for this long and a second (slurm.conf,
            AuthInfo; measured on 22.05.8).
        sched_tick_s: slurmctld asks itself so often whether to run its main scheduling pass.
        sched_interval_s: Between two main passes that nothing has asked for (slurm.conf,
            SchedulerParameters=sched_interval).
        batch_sched_delay_s: Least time between a pass and one that a submission, an end or an
            update has asked for (batch_sched_delay, or sched_min_interval if that is longer).
        bf_resolution_s: Planned starts and ends are rounded down to multiples of this
            (bf_resolution).
        bf_precision_s: Ends of running jobs that are closer together than this count as one; it
            doubles with each look further ahead (22.05: 30, see bf_window_linear in slurm.conf(5)).
        slurmd_timeout_s: A dead node is noticed after this long (slurm.conf, SlurmdTimeout).
    """

    poll_s: float = 30.0  # Between two looks of dlschedd (its ``daemon.poll_s``)
    fast_poll_s: float = 5.0  # The same while a hand-over is under way (``daemon.fast_poll_s``)
    least_gap_s: float = 1.0
    observe_s: float = 0.3  # One look at the queue
    rpc_s: float = 0.01
    writes_per_s: float = 2.0
    writes_burst: float = 20.0  # SiteFactors written at once (``writes.burst``)
    submit_s: float = 0.05  # From the user's sbatch until Slurm has the job
    launch_s: float = 5.0  # From Slurm's decision to start a run until the user's code works
    restore_s: float = 30.0  # Reading the checkpoint, at the start of a run that has one
    save_s: float = 30.0  # Writing a checkpoint
    signal_s: float = 0.1  # From the daemon's signal until the job has it
    ack_s: float = 0.5  # From the end of the save until Slurm shows the acknowledgement
    ack_wait_s: float = 60.0
    stop_s: float = 1.0  # From the requeue until the processes of a job that leaves are gone
    kill_wait_s: float = 30.0  # The same for a job that does not leave (slurm.conf, KillWait)
    finish_s: float = 0.5  # From the end of the user's code until Slurm knows
    epilog_s: float = 2.0  # From then until the GPUs are free; the job is COMPLETING meanwhile
    cred_expire_s: float = 120.0
    sched_tick_s: float = 1.0
    sched_interval_s: float = 60.0
    batch_sched_delay_s: float = 3.0
    bf_interval_s: float = 30.0  # Between two backfill passes (bf_interval)
    bf_resolution_s: float = 60.0
    bf_precision_s: float = 30.0
    bf_window_s: float = 86400.0  # How far ahead backfill plans (bf_window)
    bf_max_jobs: float = 500.0  # Jobs that one backfill pass looks at (bf_max_job_test)
    min_job_age_s: float = 300.0  # Finished jobs are listed for this long (slurm.conf, MinJobAge)
    slurmd_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        for name, value in self.as_dict().items():
            if not (math.isfinite(value) and value >= 0):
                msg = f"{name} must be a finite number, 0 or more (got {value})"
                raise ValueError(msg)
        if self.bf_max_jobs != int(self.bf_max_jobs):
            msg = f"bf_max_jobs must be a whole number (got {self.bf_max_jobs})"
            raise ValueError(msg)
        if self.fast_poll_s > self.poll_s:
            msg = f"fast_poll_s must be at most poll_s (got {self.fast_poll_s}, {self.poll_s})"
            raise ValueError(msg)

    @property
    def hold_s(self) -> float:
        """A requeued job may not start for this long, seconds."""
        return self.cred_expire_s + 1.0 if self.cred_expire_s else 0.0

    def as_dict(self) -> dict[str, float]:
        """Every field by name, for a report or a file."""
        return dataclasses.asdict(self)


PRODUCTION: Final = SlurmCosts()
"""Slurm 22.05's defaults (slurm.conf(5)), and jobs that take half a minute to save and to restore.

With the launch that is what a preemption cost on Tiresias' testbed, 62 s on average (NSDI 2019,
section 5.2.4). What else the jobs and nodes take is a guess at a site with a parallel file system.
"""

SANDBOX: Final = SlurmCosts(
    poll_s=1.0,
    fast_poll_s=1.0,
    observe_s=0.005,
    rpc_s=0.003,
    writes_per_s=20.0,
    writes_burst=100.0,
    submit_s=0.005,
    launch_s=0.059,
    restore_s=0.0,
    save_s=0.0,
    signal_s=0.022,
    ack_s=0.033,
    stop_s=0.066,
    kill_wait_s=4.716,
    finish_s=0.013,
    epilog_s=0.005,
    cred_expire_s=5.0,
    sched_tick_s=1.0017,
    sched_interval_s=3.0,
    batch_sched_delay_s=1.0,
    bf_interval_s=2.0,
    min_job_age_s=7200.0,
)
"""A sandbox as the fidelity experiment has it; its jobs say themselves how long they save."""

IDEAL: Final = SlurmCosts(
    **dict.fromkeys((f.name for f in dataclasses.fields(SlurmCosts)), 0.0)
    | {"bf_window_s": 86400.0, "bf_max_jobs": 500.0, "min_job_age_s": 300.0}
)
"""Nothing takes any time: each event is seen, decided on and acted upon at once."""

PRESETS: Final[Mapping[str, SlurmCosts]] = {
    "production": PRODUCTION,
    "sandbox": SANDBOX,
    "ideal": IDEAL,
}


def read_costs(path: Path) -> SlurmCosts:
    """The costs in a YAML (or JSON) file: a mapping of fields, and ``preset`` for all others.

    Raises:
        ConfigError: The file cannot be read, or a key or a value is wrong; names file and key.
    """
    tree = read_table(path)
    name = tree.pop("preset", "production")
    if not isinstance(name, str) or name not in PRESETS:
        msg = f"{path}: preset: {name!r} is not one of {', '.join(PRESETS)}"
        raise ConfigError(msg)
    changes = seconds_of(tree, PRESETS[name].as_dict(), path)
    try:
        return dataclasses.replace(PRESETS[name], **changes)
    except ValueError as err:
        msg = f"{path}: {err}"
        raise ConfigError(msg) from None


def read_table(path: Path) -> dict[Any, Any]:
    """The mapping in a YAML (or JSON) file of costs.

    Raises:
        ConfigError: The file cannot be read, or holds no mapping; names it.
    """
    try:
        with path.open(encoding="utf-8") as file:
            tree = table_of(file.read(_LARGEST_FILE + 1))
    except (OSError, UnicodeDecodeError) as err:
        msg = f"{path}: cannot be read: {err}"
        raise ConfigError(msg) from None
    except (yaml.YAMLError, ValueError, RecursionError) as err:
        msg = f"{path}: is no YAML: {' '.join(str(err).split())}"
        raise ConfigError(msg) from None
    if not isinstance(tree, dict):
        msg = f"{path}: want a mapping such as 'save_s: 30', one cost in each line"
        raise ConfigError(msg)
    return tree


def table_of(text: str) -> object:
    """What *text* says as YAML.

    Raises:
        yaml.YAMLError: It is none, or longer than a table, or has far more brackets: PyYAML takes
            its time to find out that they do not close.
        ValueError: A date or a number in it is out of range.
        RecursionError: It is nested too deep.
    """
    if len(text) > _LARGEST_FILE or text.count("[") + text.count("{") > _MOST_BRACKETS:
        msg = f"it has more than {_LARGEST_FILE:,} characters or {_MOST_BRACKETS} opening brackets"
        raise yaml.YAMLError(msg)
    return yaml.safe_load(text)


def seconds_of(tree: Mapping[Any, Any], known: Iterable[str], path: Path) -> dict[str, float]:
    """The numbers of *tree*.

    Raises:
        ConfigError: A key is not *known*, or a value is no number; says all of it.
    """
    wrong, found = [], {}
    names = list(known)
    for key, value in tree.items():
        if key not in names:
            why = unknown_key(str(key), names).replace("unknown key", "there is no such cost")
            wrong.append(f"{path}: {key!s:.60}: {why}")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            wrong.append(f"{path}: {key}: want a number (got {reprlib.repr(value)})")
        else:
            try:
                found[key] = float(value)
            except OverflowError:
                wrong.append(f"{path}: {key}: the number is too large")
    if wrong:
        raise ConfigError("\n".join(wrong))
    return found

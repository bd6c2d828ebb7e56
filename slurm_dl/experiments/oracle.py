"""What policies are told of a trace's jobs: speeds by GPU type, how long they run, what is due.

A trace says how long each job ran. That is taken to be on the fastest GPUs of the cluster, and
where a file has the speeds of its model on the first type there.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Final

import numpy as np

from slurm_dl.estimates.training_speed import SitePriors, speed_of
from slurm_dl.experiments.gavel_pairs import pair_rates
from slurm_dl.experiments.option_words import numbers, pairs
from slurm_dl.experiments.pair_table import PairTable, parse_pairs
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.jobs import F64
from slurm_dl.model.profile import Profile
from slurm_dl.model.shape import Shape
from slurm_dl.model.trace import Trace
from slurm_dl.simulation.cluster_shape import ANY_TYPE, ClusterShape
from slurm_dl.simulation.job_knowledge import JobSizes, TraceKnowledge
from slurm_dl.simulation.slurm.overheads import read_table
from slurm_dl.text import counted, shown

_LARGEST_SIGMA: Final = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Speeds:
    """Speeds of the n jobs of a trace on the t GPU types of a cluster."""

    rates: F64 | None = None  # ``(n, t)``, 1 on the type of the duration; None if all are 1;
    # with *steps_per_s* in steps a second.
    steps_per_s: F64 | None = None  # ``(n,)`` steps a second on that type; None: do not count
    notes: tuple[str, ...] = ()  # Which speeds were used, for people


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """Knowledge of run times, speeds and deadlines that a simulation begins with."""

    gpu_speed: Mapping[str, float] = field(default_factory=dict)  # By type, above 0; of others 1
    error: float = 0.0  # Standard deviation of log(foreseen / true run time); 0: known exactly
    due_share: float = 0.0  # Share of the jobs that are due, 0 to 1; 0: as the trace has it
    due_after: float = 2.0  # So many times their run time after their submission, 1 or more
    rates: str | None = None  # A file of speeds by model and GPU type; see `read_rates`
    rates_from: str = "--rates"  # Whose file it is, for people
    elastic: float = 0.0  # Share of the jobs that can change size, 0 to 1; see `oracle`
    expand: bool = False  # See `sized_target.Resizing`
    steadiness: float | None = None  # See `sized_target.steady`; None: 10, or as the preset has it
    pairs: PairTable | None = None  # Speeds of jobs that share their GPUs; None: none shares
    in_steps: bool = False  # Speeds are steps a second, and whole steps count, on one type, too
    pairs_by_type: str | None = None  # A file of speeds of pairs; see `gavel_pairs`

    def of(
        self,
        trace: Trace,
        rates: F64 | None,
        seed: int,
        steps_per_s: F64 | None = None,
        shape: ClusterShape | None = None,
    ) -> TraceKnowledge:
        """What is known of the jobs of *trace*; what is drawn depends on *seed* alone.

        Args:
            rates: Their `speeds`.
            steps_per_s: Likewise.
            shape: The cluster, which bounds the sizes of elastic jobs and says on which GPUs pairs
                share; None: no job is elastic, and none shares.
        """
        random = np.random.default_rng([seed, 2])
        n = len(trace)
        foreseen_s, due_s, curves = None, trace.due_s, trace.curves_by_row()
        if self.error:
            foreseen_s = trace.duration_s * np.exp(random.normal(0.0, self.error, n))
        if self.due_share:
            curves = {}
            due = random.random(n) < self.due_share
            due_s = np.where(due, trace.submit_s + self.due_after * trace.duration_s, np.inf)
        if foreseen_s is not None and steps_per_s is not None:
            foreseen_s = foreseen_s * steps_per_s
        sizes = drawn(trace, self.elastic, shape, seed) if self.elastic and shape else None
        beside = None if self.pairs is None else self.pairs.of(trace, seed)
        if self.pairs_by_type is not None and shape is not None:
            beside = pair_rates(trace, Path(self.pairs_by_type), shape.gpu_types)
        return TraceKnowledge(
            rates=rates,
            pair_rates=beside,
            due_s=due_s,
            curves=curves,
            foreseen_s=foreseen_s,
            steps_per_s=steps_per_s,
            sizes=sizes,
        )

    def speeds(self, trace: Trace, shape: ClusterShape, profiles: Mapping[str, Profile]) -> Speeds:
        """Speeds of the jobs on each type, and which ones were used.

        Raises:
            ConfigError: A type has no GPUs, or the file of rates is none.
        """
        kinds = shape.gpu_types
        unknown = set(self.gpu_speed) - set(kinds)
        if unknown:
            msg = (
                f"--gpu-speed: no GPUs of type {', '.join(sorted(unknown))} in cluster {shape} "
                f"(there are {', '.join(kinds)})"
            )
            raise ConfigError(msg)
        if len(kinds) == 1 and not self.in_steps:
            return Speeds()
        if not (self.gpu_speed or self.rates):
            return Speeds(
                notes=(f"GPU types {', '.join(kinds)} are alike: see --gpu-speed, --rates",)
            )
        site = SitePriors(gpu_speed=dict(self.gpu_speed))
        table = {} if self.rates is None else read_rates(Path(self.rates))
        rows, steps = np.ones((len(trace), len(kinds))), np.ones(len(trace))
        jobs: Counter[str] = Counter()
        for model, gpus in sorted({*zip(trace.model.tolist(), trace.gpus.tolist(), strict=True)}):
            name = trace.models[model] if model >= 0 else ""
            profile, of = profiles.get(name), (trace.model == model) & (trace.gpus == gpus)
            if name in table:
                base, told = self._of_table(table[name], name, gpus, kinds)
                if self.in_steps:
                    steps[of] = base
                else:
                    told = [speed / base for speed in told]
            else:
                one = Shape(1, max(1, int(gpus)))
                each = [speed_of(profile, one, k, site, gpus=gpus).samples_per_s for k in kinds]
                told = [speed / max(each) for speed in each]
            rows[of] = told
            if name in table:
                source = self.rates_from
            elif profile is not None and profile.speeds:
                source = "profiles"
            else:
                source = "--gpu-speed" if self.gpu_speed else "none (types are alike)"
            jobs[source] += int(of.sum())
        words = ", ".join(f"{counted(n, 'job')} by {word}" for word, n in sorted(jobs.items()))
        said = f"speeds on {', '.join(kinds)}: {words}"
        alike = bool((rows == 1.0).all()) and not self.in_steps
        return Speeds(None if alike else rows, steps if self.in_steps else None, (said,))

    def _of_table(
        self, of: Mapping[float, Mapping[str, float]], model: str, gpus: float, kinds: Sequence[str]
    ) -> tuple[float, list[float]]:
        """The speed of *model* on its first type, and those on *kinds*.

        On the nearest number of GPUs.
        """
        speeds = of[min(of, key=lambda n: (abs(math.log(n / gpus)) if n else -1, n))]
        base = next(iter(speeds.values())) or max(speeds.values())
        if tuple(kinds) == (ANY_TYPE,):
            return base, [base]
        for kind in kinds:
            if kind not in speeds:
                has = ", ".join(speeds)
                msg = f"{self.rates_from}: {shown(model)} has no speed on {kind} (it has {has})"
                raise ConfigError(msg)
        told = [speeds[kind] for kind in kinds]
        if not any(told):
            where = ", ".join(kinds)
            msg = f"{self.rates_from}: {shown(model)} on {gpus:g} GPUs can run on none of {where}"
            raise ConfigError(msg)
        return base, told


Rates = Mapping[str, Mapping[float, Mapping[str, float]]]
"""Speed by model, number of GPUs (0: any) and GPU type."""


@functools.lru_cache(maxsize=4)
def read_rates(path: Path) -> Rates:
    """Speeds from YAML or JSON: ``MODEL: {TYPE: SPEED}`` or ``MODEL: {GPUS: {TYPE: SPEED}}``.

    All of it may stand under ``steps_per_s``, beside the origin of the figures.

    Those of a model are in any unit of work for each second; 0: it cannot run there. Durations of
    the trace are those on the first type.

    Raises:
        ConfigError: The file cannot be read, or something in it is no such thing.
    """
    form = "must be MODEL: {TYPE: SPEED} or MODEL: {GPUS: {TYPE: SPEED}}, a speed of each above 0"
    try:
        table = read_table(path)
    except ConfigError as err:
        msg = f"--rates {form} ({err})"
        raise ConfigError(msg) from err
    table = table.get("steps_per_s", table)
    rates: dict[str, dict[float, dict[str, float]]] = {}
    for model, told in table.items():
        try:
            nested = isinstance(next(iter(told.values())), dict)
            # In JSON they are texts.
            by_gpus = {_number(float(n)): of for n, of in told.items()} if nested else {0.0: told}
            rates[str(model)] = {gpus: _speeds(of) for gpus, of in by_gpus.items()}
            if nested and not min(by_gpus) > 0:
                raise ValueError  # noqa: TRY301 - as the others
        except (AttributeError, OverflowError, StopIteration, TypeError, ValueError) as err:
            msg = f"--rates {path}: {shown(model)}: {form}"
            raise ConfigError(msg) from err
    return rates


def _speeds(told: Mapping[object, object]) -> dict[str, float]:
    speeds = {kind: _number(speed) for kind, speed in told.items() if isinstance(kind, str)}
    if len(speeds) < len(told) or not max(speeds.values()) > 0:
        raise ValueError
    return speeds


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError
    return float(value)


def parse_foresight(
    gpu_speed: str | None,
    error: float,
    due: str | None,
    rates: Path | None = None,
    *,
    elastic: float = 0.0,
    expand: bool = False,
    steadiness: float | None = None,
    pair_table: str | None = None,
) -> Oracle:
    """What is known beforehand, from the words of its options.

    Raises:
        ConfigError: One of them is no such thing.
    """
    if not 0 <= error <= _LARGEST_SIGMA:
        msg = f"--estimate-error {error:g}: must be 0 to {_LARGEST_SIGMA:g}"
        raise ConfigError(msg)
    if not 0 <= elastic <= 1:
        msg = f"--elastic {elastic:g}: must be a share of the jobs, 0 to 1"
        raise ConfigError(msg)
    if steadiness is not None and not 0 <= steadiness < math.inf:
        msg = f"--steadiness {steadiness:g}: must be a number of restarts, 0 or more"
        raise ConfigError(msg)
    words = gpu_speed.split(",") if gpu_speed else ()
    form = "TYPE=SPEED, each type once, as v100=4,k80=1"
    speeds = pairs("--gpu-speed", words, form, _speed)
    form = "SHARE:MULTIPLE, as 0.3:1.5: three jobs in ten, due one and a half run times later"
    share, after = _due(0.0) if due is None else numbers("--due", due, form, _due, at=":")
    if rates is not None:
        read_rates(rates)
    return Oracle(
        gpu_speed=speeds, error=error, due_share=share, due_after=after,
        rates=None if rates is None else str(rates), elastic=elastic, expand=expand,
        steadiness=steadiness, pairs=parse_pairs(pair_table),
    )  # fmt: skip


def _speed(text: str) -> float:
    speed = float(text)
    if not 0 < speed < np.inf:
        raise ValueError
    return speed


def _due(share: float, after: float = 2.0) -> tuple[float, float]:
    if not 0 <= share <= 1 <= after:
        raise ValueError
    return share, after


LARGEST_SERIAL: Final = 0.1
TIMES: Final = (0.5, 1.0, 1.5, 2.0)


def drawn(
    trace: Trace, share: float, shape: ClusterShape, seed: int
) -> tuple[JobSizes | None, ...]:
    """The sizes of each job of *trace*; None for those that keep their size.

    A job of a model that was measured has the sizes in which it was; see `measured_speeds`. Another
    one that asks for g GPUs runs on half, one, one and a half or two times as many, where these
    are whole and the cluster has them. A job that asks for more than the cluster has stays as it
    is. The speed on g GPUs is ``1 / (s + (1 - s) / g)``, with a serial part s of 0 to 0.1 that is
    drawn for each job: at most 10, and 4.7 on 8 GPUs.

    Source: Amdahl, "Validity of the single processor approach to achieving large scale computing
    capabilities", AFIPS 1967. The range of s is ours.

    Args:
        share: Part of the jobs that is elastic, 0 to 1, drawn job by job.
    """
    measured = measured_speeds()
    random = np.random.default_rng([seed, 3])
    elastic = random.random(len(trace)) < share
    serial = random.uniform(0.0, LARGEST_SERIAL, len(trace))
    nodes = shape.nodes()
    all_gpus, node_gpus = float(nodes.gpus.sum()), float(nodes.gpus.max(initial=1.0))
    found: list[JobSizes | None] = []
    each = zip(trace.gpus.tolist(), serial, elastic, trace.model.tolist(), strict=True)
    for asked, s, is_elastic, model in each:
        speeds = measured.get(trace.models[model] if model >= 0 else "", {})
        gpus = np.array([*speeds] if asked in speeds else [n * asked for n in TIMES])
        gpus = gpus[(gpus == np.round(gpus)) & (gpus >= 1) & (gpus <= all_gpus)]
        if not is_elastic or len(gpus) == 1 or asked not in gpus:
            found.append(None)
            continue
        rate = speed(gpus, s) / speed(np.array([asked]), s)
        if asked in speeds:
            rate = np.array([speeds[n] / speeds[asked] for n in gpus.tolist()])
        found.append(
            JobSizes(
                gpus=gpus,
                nodes=np.array([math.ceil(n / node_gpus) for n in gpus], dtype=np.float64),
                rate=rate,
                asked=int(gpus.searchsorted(asked)),
            )
        )
    return tuple(found)


SPEEDS: Final = Path(str(files("slurm_dl.traces.formats"))) / "elasticflow_steps_per_s.json"
"""Measurements of ElasticFlow's authors on A100 GPUs; see `measured_speeds`."""


@functools.cache
def measured_speeds() -> Mapping[str, Mapping[float, float]]:
    """Iterations a second by model with its batch size and, increasing, number of GPUs."""
    told = json.loads(SPEEDS.read_text(encoding="utf-8"))["steps_per_s"]
    return {name: {float(n): speed for n, speed in of.items()} for name, of in told.items()}


def speed(gpus: F64, serial: float) -> F64:
    """``(k,)`` speed on so many GPUs each; 1 on one."""
    found: F64 = 1 / (serial + (1 - serial) / gpus)
    return found

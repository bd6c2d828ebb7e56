"""What different code bases compute under one name.

"Tiresias" alone means eight things in the published simulators: they differ in the limits of the
queues, in the order inside a queue, in the promotion knob, in when they decide and in what a
restart costs. A preset is one of those readings, whole, and a report names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.policies import registry
from slurm_dl.policies.gavel.pool import Choosing
from slurm_dl.simulation.ideal.decision_times import AT_EVENTS, DecisionTimes
from slurm_dl.simulation.ideal.start_costs import Costs, FlatCosts, NoCosts, measured, muri_costs


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReading:
    """A policy of the registry with some parameters set."""

    policy: str  # Its name in the registry
    parameters: Mapping[str, object] = field(default_factory=dict)  # What differs from its defaults


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One code base's way.

    Attributes:
        readings: What it runs for a policy of that name.
        others: Policies that it has too, and runs as they are; None: all there are.
        knows_sizes: The policy gets the sizes of all jobs of the trace as ``sizes_gpu_s``, also of
            those that have not finished.
        rates: Table in `slurm_dl.traces.formats` of the speeds of its GPU types, in steps a second;
            its rounds are then those of `gavel_rounds`. Empty: none.
        pairs: Table beside it of the speeds of two jobs on the same GPUs.
        measured: Jobs of a trace with measured models go on nodes as `measured_jobs` has them, and
            may be of other sizes.
        adapts: Policies under which the batches of measured jobs adapt to their sizes.
        from_zero: Its rounds count from the zero of the trace, not from the first submission.
    """

    about: str  # One line for people, with the source
    readings: Mapping[str, PolicyReading] = field(default_factory=dict)
    others: frozenset[str] | None = frozenset()
    clockwork: DecisionTimes = AT_EVENTS  # When it decides
    restart_s: float = 0.0  # Seconds that every start after a job's first costs
    large_restart_s: float = 0.0  # The same for jobs of more than *large_gpus* GPUs
    large_gpus: float = float("inf")
    start_s: float = 0.0  # Seconds that a first start costs
    charges: str = "restart"  # "restart": the above. "muri": Muri's rule.
    knows_sizes: bool = False
    rates: str = ""
    pairs: str = ""
    cluster: str = ""  # The cluster it was published for; empty: none
    steadiness: float = 10.0  # See `engine.sized_target.steady`
    measured: bool = False
    adapts: tuple[str, ...] = ()
    from_zero: bool = False

    def costs(self, trace: Trace) -> Costs:
        """Its cost model for the jobs of *trace*."""
        if self.charges == "muri":
            return muri_costs(trace)
        if not (self.restart_s or self.large_restart_s or self.start_s):
            return NoCosts()
        return FlatCosts(
            restart_s=self.restart_s,
            large_restart_s=self.large_restart_s or self.restart_s,
            gpus=trace.gpus,
            large_gpus=self.large_gpus,
            start_s=self.start_s,
        )

    def decides(self, trace: Trace) -> DecisionTimes:
        """Its instants of decisions for the jobs of *trace*."""
        if not (self.from_zero and len(trace)):
            return self.clockwork
        phase_s = -float(trace.submit_s[0]) % self.clockwork.round_s
        return replace(self.clockwork, phase_s=phase_s)

    @property
    def is_of_its_own(self) -> bool:
        """Whether it says when to decide or what starting costs."""
        charges = (self.restart_s, self.large_restart_s, self.start_s)
        return self.clockwork != AT_EVENTS or self.charges != "restart" or any(charges)

    def reading(self, policy: str) -> PolicyReading:
        """What it runs for *policy*.

        Raises:
            ConfigError: It has no such policy.
        """
        if policy in self.readings:
            return self.readings[policy]
        if self.others is None or policy in self.others:
            return PolicyReading(policy=policy)
        has = ", ".join(sorted({*self.readings, *self.others}))
        msg = f"this preset has no policy {policy!r}; it has {has} ({self.about})"
        raise ConfigError(msg)


_PLAIN: Final = frozenset({"fifo", "fifo_skip", "fewest_gpus", "srtf", "srsf"})
"""Schedules of Tiresias' simulator that are as ours: compared with it job by job."""

_GAVEL: Final = frozenset(name for name in registry.POLICIES if name.startswith("gavel_"))

_ELASTIC: Final = frozenset({"optimus", "afs", "sidecar", "sia", "pollux"})

_POLLUX: Final = Preset(
    about="Pollux' simulator (OSDI 2021): its measured models, if the trace has them, with batches "
    "that adapt under pollux and sia; 2 queues at 16 GPU-h, by arrival; decides every 60 s; 30 s a "
    "start",
    readings={
        name: PolicyReading(policy="arrival_las", parameters={"thresholds_gpu_s": (57_600.0,)})
        for name in ("discrete_las", "arrival_las")
    },
    others=_ELASTIC,
    clockwork=DecisionTimes(round_s=60.0),
    restart_s=30.0,
    start_s=30.0,
    cluster="16x4",
    steadiness=0.0,
    measured=True,
    adapts=("pollux", "sia"),
    from_zero=True,
)

_WHOLE_SECONDS: Final = DecisionTimes(tick_s=1.0)


def _lists(**parameters: object) -> PolicyReading:
    return PolicyReading(policy="list_las", parameters=parameters)


def _sizes() -> tuple[float, ...]:
    return tuple(float(s) for s in measured("tiresias_gpu_time_samples")["samples_gpu_s"])


PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        "none": Preset(
            about="each policy as its parameters say; starting costs nothing",
            others=None,
        ),
        "whole-trace": Preset(
            about="knows the sizes of all jobs of the trace beforehand, which no real cluster does",
            readings={name: PolicyReading(policy=name) for name in ("discrete_gittins", "gittins")},
            knows_sizes=True,
        ),
        "tiresias-corrected": Preset(
            about="Tiresias' simulator (NSDI 2019) with demotion at the right instant",
            readings={"discrete_las": _lists()},
            others=_PLAIN,
            clockwork=_WHOLE_SECONDS,
        ),
        "tiresias-artifact": Preset(
            about="Tiresias' simulator as published: demotion comes late, 2D",
            readings={"discrete_las": _lists(late_demotion=True)},
            others=_PLAIN,
            clockwork=_WHOLE_SECONDS,
        ),
        "tiresias-artifact-1d": Preset(
            about="Tiresias' simulator as published, service in seconds alone",
            readings={"discrete_las": _lists(dimensions=1)},
            others=_PLAIN,
            clockwork=_WHOLE_SECONDS,
        ),
        "gittins-artifact": Preset(
            about="Tiresias' simulator as published: its own index, late demotion, its size table",
            readings={
                "gittins": PolicyReading(
                    policy="list_gittins",
                    parameters={"late_demotion": True, "sizes_gpu_s": _sizes()},
                )
            },
            clockwork=_WHOLE_SECONDS,
        ),
        "muri": Preset(
            about="Muri's simulator (SIGCOMM 2022): start overhead at every event",
            readings={"discrete_las": _lists(demotion_step_s=1.0)},
            others=frozenset({"srtf", "srsf"}),
            charges="muri",
        ),
        "pollux-artifact": _POLLUX,
        "pollux-adaptive": replace(
            _POLLUX,
            about="as pollux-artifact, and batches adapt under optimus, afs and sidecar as well",
            readings={},
            adapts=tuple(sorted(_ELASTIC)),
        ),
        "lucid": Preset(
            about="rules of Lucid's simulator (ASPLOS 2023): 2 queues at 18,000 GPU-s, by "
            "submission; decides every 60 s; a restart costs 40 s, above 8 GPUs 60 s",
            readings={
                "discrete_las": PolicyReading(
                    policy="arrival_las", parameters={"thresholds_gpu_s": (18_000.0,)}
                )
            },
            clockwork=DecisionTimes(round_s=60.0),
            restart_s=40.0,
            large_restart_s=60.0,
            large_gpus=8.0,
        ),
        "gavel": Preset(
            about="Gavel's simulator (OSDI 2020): rounds of 360 s by share / fraction of time had, "
            "its measured speeds, its cluster",
            readings={
                name: PolicyReading(policy=name, parameters={"interior": True})
                for name in sorted(_GAVEL)
                if issubclass(registry.find(name), Choosing)
            },
            others=_GAVEL,
            clockwork=DecisionTimes(round_s=360.0),
            rates="gavel_steps_per_s.json",
            pairs="gavel_pairs.json",
            cluster="8x1:v100,16x1:p100,24x1:k80",
        ),
        "voda": Preset(
            about="rules of vodascheduler: 2 queues at 3,600 s of run time (it may mean GPU-s), "
            "promotion knob 8",
            readings={
                "discrete_las": PolicyReading(
                    policy="discrete_las",
                    parameters={
                        "thresholds_gpu_s": (3600.0,),
                        "dimensions": 1,
                        "promote_knob": 8.0,
                    },
                )
            },
        ),
    }
)
"""By name. ``none`` is no preset."""


def find(name: str) -> Preset:
    """The preset called *name*.

    Raises:
        ConfigError: There is none.
    """
    if name not in PRESETS:
        msg = f"preset {name!r} is unknown; there are {', '.join(PRESETS)}"
        raise ConfigError(msg)
    return PRESETS[name]


def cluster_of(names: Iterable[str | None]) -> str | None:
    """The cluster that all presets *names* were published for; None if there is no such one.

    Raises:
        ConfigError: There is no preset of one of these names.
    """
    clusters = {find(name or "none").cluster for name in names}
    return clusters.pop() or None if len(clusters) == 1 else None


def reading_of(policy: str, preset: str | None) -> PolicyReading:
    """What *preset* runs for *policy*; None: no preset.

    Raises:
        ConfigError: There is no such policy or preset, or the preset has no such policy.
    """
    registry.find(policy)
    return find(preset or "none").reading(policy)

"""What is known of a model: how it loads a GPU, a network and a CPU, and how fast it is where.

Profiles belong to the admin; a job only names one. Every field may be unknown, and unknown is not
zero: None means that nobody has measured or computed it, and who needs it says what it does then.
The bounds of the fields hold for files: `slurm_dl.profiles.directory` checks them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

from slurm_dl.model.bounds import Bound, Spelled
from slurm_dl.model.shape import Shape

Origin = Literal["measured", "computed", "published", "declared"]
"""Where a figure is from: runs here, the model's architecture, a paper, the admin's word."""

NAME = r"[A-Za-z0-9][A-Za-z0-9._+/-]{0,63}"  # A model's name as a job may give it

HINTS = r"[a-z0-9_=:+.A-Z,-]{0,200}"  # Hints that a run was under, as a job may give them

Label = Annotated[int, Bound(ge=0, le=2)]
"""How much a job slows down a neighbour on the same GPU: 0 hardly, 1 somewhat, 2 never pack it."""

SharingMode = Literal["slices", "mps"]
"""Two jobs on one GPU: they take turns in slices of time, or run at once under NVIDIA's MPS."""

_Name = Annotated[str, Spelled(NAME, "must be letters, digits and . _ + / -, 64 at most")]
_Alias = Annotated[str, Spelled(r"[A-Za-z0-9][ -~]{0,63}", "must be 1 to 64 ASCII characters")]
_GpuType = Annotated[str, Spelled(r"[A-Za-z0-9._+-]{0,64}", "must be letters, digits and . _ + -")]
_NcclName = Annotated[str, Spelled(r"NCCL_[A-Z0-9_]{1,60}", "must be a variable of NCCL")]
_NcclValue = Annotated[str, Spelled(r"[ -~]{0,200}", "must be at most 200 ASCII characters")]
_Hints = Annotated[str, Spelled(HINTS, "must be hints as dlsubmit writes them")]
_Positive = Annotated[float, Bound(gt=0, le=1e12)]
_NotNegative = Annotated[float, Bound(ge=0, le=1e12)]
_Share = Annotated[float, Bound(ge=0, le=1)]
_Count = Annotated[int, Bound(ge=0, le=10**9)]
_Batch = Annotated[int, Bound(ge=1, le=10**9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast the model trains in one shape.

    Attributes:
        observations: Runs it counts for when later ones are joined with it; 0 if it was not
            measured here.
    """

    shape: Shape  # Nodes and GPUs on each
    steps_per_s: _Positive  # Iterations a second of the whole job, above 0
    gpu_type: _GpuType = ""  # GPUs it was measured on; empty for any
    observations: _Count = 0
    spread: _NotNegative | None = None  # How far those runs lie from it / it; None if unknown
    batch: _Batch | None = None  # Samples of one GPU in one step; None if unknown
    origin: Origin = "declared"  # Where it is from
    hints: _Hints = ""  # Those that the runs were under; empty: none


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRate:
    """Speed in one shape relative to the best shape with as many GPUs, where only that is known."""

    shape: Shape  # Nodes and GPUs on each
    rate: Annotated[float, Bound(gt=0, le=10)]  # Above 0; 1 is as fast as the best
    origin: Origin = "declared"  # Where it is from


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCost:
    """What saving and restoring costs."""

    size_mb: _Positive | None = None  # MB on disk; None if unknown
    save_s: _NotNegative | None = None  # Seconds to save; None if unknown
    restore_s: _NotNegative | None = None  # Seconds to restore; None if unknown
    observations: _Count = 0  # Saves that *save_s* counts for; 0 if it was not measured here


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load of one GPU of the job on its surroundings, measured alone on it.

    Attributes:
        gpu_type: GPUs that `gpu_util`, `memory_util` and `sm_active` were measured on; empty for
            any.
        memory_util: Share of the time in which its kernels read or write GPU memory, 0 to 1; None
            if unknown.
        sm_active: Share of the multiprocessors that have work, mean over time, 0 to 1; None if
            unknown.
        observations: Runs that those count for; 0 if they were not measured here.
        gpu_mem_kept_mb: Of that what stays between iterations (weights, optimiser state), MB; None
            if unknown.
        network_mb_s: Traffic with other nodes when it spans several, MB a second; None if unknown.
    """

    gpu_type: _GpuType = ""
    gpu_util: _Share | None = None  # Share of the time its kernels run, 0 to 1; None if unknown
    memory_util: _Share | None = None
    sm_active: _Share | None = None
    observations: _Count = 0
    gpu_mem_mb: _NotNegative | None = None  # Most GPU memory at any time, MB; None if unknown
    gpu_mem_kept_mb: _NotNegative | None = None
    network_mb_s: _NotNegative | None = None
    pcie_mb_s: _NotNegative | None = None  # Traffic over PCIe, MB a second; None if unknown


class Pair(NamedTuple):
    """A model beside *other* on a GPU of a type, empty for any, in a mode."""

    other: str
    mode: SharingMode
    gpu_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Speed of a model beside another one on the same GPU, relative to being alone there."""

    other: _Name  # The other model
    rate: Annotated[float, Bound(ge=0, le=2)]  # 0 if both do not fit
    mode: SharingMode = "slices"
    gpu_type: _GpuType = ""  # GPUs it was measured on; empty for any
    observations: _Count = 0  # Runs it counts for; 0 if it was not measured here
    origin: Origin = "declared"  # Where it is from

    @property
    def pair(self) -> Pair:
        """The key of a speed in a profile."""
        return Pair(self.other, self.mode, self.gpu_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRate:
    """Speed with so many CPUs and so much memory for each GPU, relative to the best of all."""

    cpus_per_gpu: _Positive  # CPUs for each GPU
    mem_mb_per_gpu: _NotNegative  # Memory for each GPU, MB
    rate: _Share  # 0 to 1; 1 is the fastest that was seen


@dataclass(frozen=True, kw_only=True)  # Without slots, for the property that is looked up often
class Profile:
    """One model.

    Attributes:
        aliases: Other names of the same model, such as traces use.
        parameters: Number of parameters; None if unknown.
        skew: Largest tensor / sum of all; None if unknown.
        batch: Least and most samples of one GPU in one step; None if unknown.
        label: How much it slows down a neighbour in slices, on any GPU, as the admin says; None:
            that is for measurements to say.
        beside: Its speed beside other models on the same GPU.
        host: Speeds by CPUs and memory; empty if unknown.
        speeds: Speed in each shape that was measured or published.
        hinted: Speeds of runs under hints, each compared with runs under the same hints alone.
        shape_rates: Relative speeds, for shapes of which `speeds` says nothing.
        nccl: Settings of NCCL for its jobs, as environment variables.
        tensors_mb: Sizes of its parameter tensors, MB (2^20 bytes) of float32, forward order; empty
            if unknown.
    """

    name: _Name  # As jobs name it
    aliases: Annotated[tuple[_Alias, ...], Bound(max_length=100)] = ()
    source: Annotated[str, Bound(max_length=4000)] = ""  # Where the figures are from
    parameters: Annotated[int, Bound(ge=1, le=10**15)] | None = None
    skew: Annotated[float, Bound(gt=0, le=1)] | None = None
    label: Label | None = None
    batch: tuple[_Batch, _Batch] | None = None
    load: Load = Load()  # What one GPU of it loads
    checkpoint: CheckpointCost = CheckpointCost()  # What saving costs
    beside: Annotated[tuple[Beside, ...], Bound(max_length=4000)] = ()
    host: Annotated[tuple[HostRate, ...], Bound(max_length=1000)] = ()
    speeds: Annotated[tuple[Speed, ...], Bound(max_length=2000)] = ()
    hinted: Annotated[tuple[Speed, ...], Bound(max_length=2000)] = ()
    shape_rates: Annotated[tuple[ShapeRate, ...], Bound(max_length=2000)] = ()
    nccl: Annotated[Mapping[_NcclName, _NcclValue], Bound(max_length=100)] = field(
        default_factory=dict
    )
    tensors_mb: Annotated[tuple[_Positive, ...], Bound(max_length=20_000)] = ()

    def speed(self, shape: Shape, gpu_type: str = "", *, hints: str = "") -> Speed | None:
        """The speed in *shape*, the type's own before any type's; None if nobody measured it.

        Args:
            hints: Those that a run of it is under; without any a plain speed is told.
        """
        there = [s for s in self.hinted if s.hints == hints] if hints else self.speeds
        fitting = [s for s in there if s.shape == shape and s.gpu_type in ("", gpu_type)]
        return max(fitting, key=lambda s: s.gpu_type == gpu_type, default=None)

    def speed_beside(self, other: str, mode: SharingMode, gpu_type: str = "") -> float | None:
        """Relative speed beside *other*, the type's own before any type's; None if not measured."""
        found = self._beside.get((other, mode, gpu_type)) or self._beside.get((other, mode, ""))
        return None if found is None else found.rate

    @cached_property
    def _beside(self) -> Mapping[tuple[str, SharingMode, str], Beside]:
        return {one.pair: one for one in self.beside}

    def rate(self, shape: Shape, gpu_type: str = "") -> float | None:
        """Speed in *shape* relative to the best known shape with as many GPUs of the type.

        Measured and published speeds come before relative ones. None if nothing is known of this
        shape, or it is the only one with so many GPUs that is known: that says nothing of it.
        """
        for kind in dict.fromkeys((gpu_type, "")):
            speeds = {
                s.shape: s.steps_per_s
                for s in self.speeds
                if s.gpu_type == kind and s.shape.gpus == shape.gpus
            }
            if shape in speeds and len(speeds) > 1:
                return speeds[shape] / max(speeds.values())
        rates = {r.shape: r.rate for r in self.shape_rates if r.shape.gpus == shape.gpus}
        if shape in rates and len(rates) > 1:
            return rates[shape] / max(rates.values())
        return None


def skew_of(tensors_mb: tuple[float, ...]) -> float:
    """Largest tensor / sum of all.

    Source: Tiresias, NSDI 2019, section 3.3 (model-based placement).

    Raises:
        ValueError: There is no tensor, or one is not above 0.
    """
    if not tensors_mb or not all(math.isfinite(t) and t > 0 for t in tensors_mb):
        msg = "skew needs one or more tensor sizes above 0"
        raise ValueError(msg)
    return max(tensors_mb) / math.fsum(tensors_mb)

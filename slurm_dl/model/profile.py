"""What is known of a model: how it loads a GPU, a network and a CPU, and how fast it is where.

Profiles belong to the admin; a job only names one. Every field may be unknown, and unknown is not
zero: None means that nobody has measured or computed it, and who needs it says what it does then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Origin = Literal["measured", "computed", "published", "declared"]
"""Where a figure is from: runs here, the model's architecture, a paper, the admin's word."""

Label = Literal[0, 1, 2]
"""How much a job slows down a neighbour on the same GPU: 0 hardly, 1 somewhat, 2 never pack it."""


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """How a job lies on nodes: the same number of GPUs on each.

    Attributes:
        nodes: Nodes, at least 1.
        gpus_per_node: GPUs on each, at least 1.
    """

    nodes: int
    gpus_per_node: int

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus_per_node < 1:
            msg = f"a shape has at least one node and one GPU on each (got {self})"
            raise ValueError(msg)

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.nodes * self.gpus_per_node

    def __str__(self) -> str:
        return f"{self.nodes}x{self.gpus_per_node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast the model trains in one shape.

    Attributes:
        shape: Nodes and GPUs on each.
        gpu_type: GPUs it was measured on; empty for any.
        steps_per_s: Iterations a second of the whole job, above 0.
        observations: Runs it is the mean of; 0 if it was not measured here.
        spread: Standard deviation of those runs / their mean; None if unknown.
        batch: Samples of one GPU in one step; None if unknown.
        origin: Where it is from.
    """

    shape: Shape
    steps_per_s: float
    gpu_type: str = ""
    observations: int = 0
    spread: float | None = None
    batch: int | None = None
    origin: Origin = "declared"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.steps_per_s) and self.steps_per_s > 0):
            msg = f"steps_per_s must be above 0 (got {self.steps_per_s})"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRate:
    """Speed in one shape relative to the best shape with as many GPUs, where only that is known.

    Attributes:
        shape: Nodes and GPUs on each.
        rate: Above 0; 1 is as fast as the best.
        origin: Where it is from.
    """

    shape: Shape
    rate: float
    origin: Origin = "declared"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rate) and self.rate > 0):
            msg = f"rate must be above 0 (got {self.rate})"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCost:
    """What saving and restoring costs.

    Attributes:
        size_mb: MB on disk; None if unknown.
        save_s: Seconds to save; None if unknown.
        restore_s: Seconds to restore; None if unknown.
        observations: Saves that *save_s* is the mean of; 0 if it was not measured here.
    """

    size_mb: float | None = None
    save_s: float | None = None
    restore_s: float | None = None
    observations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one GPU of the job puts on its surroundings.

    Attributes:
        gpu_util: Share of the time its kernels run, 0 to 1; None if unknown.
        gpu_mem_mb: Most GPU memory at any time, MB; None if unknown.
        gpu_mem_kept_mb: Of that what stays between iterations (weights, optimiser state), MB; None
            if unknown.
        network_mb_s: Traffic with other nodes when it spans several, MB a second; None if unknown.
        pcie_mb_s: Traffic over PCIe, MB a second; None if unknown.
    """

    gpu_util: float | None = None
    gpu_mem_mb: float | None = None
    gpu_mem_kept_mb: float | None = None
    network_mb_s: float | None = None
    pcie_mb_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRate:
    """Speed with so many CPUs and so much memory for each GPU, relative to the best of all.

    Attributes:
        cpus_per_gpu: CPUs for each GPU.
        mem_mb_per_gpu: Memory for each GPU, MB.
        rate: 0 to 1; 1 is the fastest that was seen.
    """

    cpus_per_gpu: float
    mem_mb_per_gpu: float
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One model.

    Attributes:
        name: As jobs name it.
        aliases: Other names of the same model, such as traces use.
        tensors_mb: Sizes of its parameter tensors, MB (2^20 bytes) of float32, forward order; empty
            if unknown.
        skew: Largest tensor / sum of all; None if unknown.
        parameters: Number of parameters; None if unknown.
        load: What one GPU of it loads.
        label: How much it slows down a neighbour; None: it is never packed.
        beside: Its speed beside another model on the same GPU relative to being alone, by that
            model's name.
        host: Speeds by CPUs and memory; empty if unknown.
        checkpoint: What saving costs.
        speeds: Speed in each shape that was measured or published.
        shape_rates: Relative speeds, for shapes of which `speeds` says nothing.
        batch: Least and most samples of one GPU in one step; None if unknown.
        nccl: Settings of NCCL for its jobs, as environment variables.
        source: Where the figures are from.
    """

    name: str
    aliases: tuple[str, ...] = ()
    tensors_mb: tuple[float, ...] = ()
    skew: float | None = None
    parameters: int | None = None
    load: Load = Load()
    label: Label | None = None
    beside: Mapping[str, float] = field(default_factory=dict)
    host: tuple[HostRate, ...] = ()
    checkpoint: CheckpointCost = CheckpointCost()
    speeds: tuple[Speed, ...] = ()
    shape_rates: tuple[ShapeRate, ...] = ()
    batch: tuple[int, int] | None = None
    nccl: Mapping[str, str] = field(default_factory=dict)
    source: str = ""

    def speed(self, shape: Shape, gpu_type: str = "") -> Speed | None:
        """The speed in *shape*, the type's own before any type's; None if nobody measured it."""
        fitting = [s for s in self.speeds if s.shape == shape and s.gpu_type in ("", gpu_type)]
        return max(fitting, key=lambda s: s.gpu_type == gpu_type, default=None)

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

"""For training scripts that change size: batch, learning rate, and noise of the gradient.

It needs the standard library alone; PyTorch is used through the objects that the script hands over.

    part = elastic.split(batch, ranks, most_local=64)
    noise = elastic.GradientNoise(model.parameters())
    ...                                   # part.passes times: a loss divided by part.passes
    noise.measure(part, dist.all_reduce)  # behind the last backward(), before optimiser.step()
    job.report(step, total, part=part, noise=noise.scale)
    for group in optimiser.param_groups:
        group["lr"] = rate * elastic.adascale(part.batch / batch, noise.var / batch, noise.sqr)
"""

from __future__ import annotations

import math
import os
from typing import Any, Callable, Iterable, NamedTuple

BATCH_VARIABLE = "SLURM_DL_BATCH"
"""The word of ``dlsubmit --batch``."""

MODES = ("fixed", "gpu", "elan", "adapt")


class Split(NamedTuple):
    """A step of the training, in the present size."""

    gpus: int
    local_batch: int  # Samples of a GPU in one pass, at most
    passes: int  # Whose gradients add up before the optimiser's step
    batch: int  # Samples of the step, of all GPUs and passes
    first: int  # Global batch that the training was made for
    most: int  # Largest global batch; *batch* where there is no bound
    least_local: int  # Fewest samples of a GPU in one pass that use it well
    most_local: int  # Most samples that a GPU takes in one pass


def split(
    batch: int,
    gpus: int,
    *,
    most_local: int,
    least_local: int = 1,
    most: int | None = None,
    asked_gpus: int = 1,
    noise: float | None = None,
    mode: str | None = None,
) -> Split:
    """Divide a step among *gpus* GPUs, with as few passes as fit.

    The global batch is, by *mode*:

    - ``fixed``: *batch*. If it cannot be divided, some GPUs have a sample less in a pass.
    - ``gpu``: in proportion to the GPUs, *batch* on *asked_gpus* of them.
    - ``elan``: *batch* as long as each GPU has *least_local* samples of it, and beyond that so many
      for each GPU (Xie et al. 2020, "Elan", hybrid scaling: strong first, then weak).
    - ``adapt``: *noise*, where more samples begin to bring less (McCandlish et al. 2018, section
      2.3), but no less than *batch*. The scheduler expects the batch of the largest goodput (Qiao
      et al. 2021, "Pollux", section 3) in the same limits: it knows the times of steps, too.

    All but the first are at most *most*, and rounded so that GPUs and passes have equally many.

    Args:
        batch: Global batch that the training was made for, samples.
        most_local: Most samples that a GPU takes in one pass.
        least_local: Fewest samples of a GPU in one pass that use it well.
        most: Largest global batch; None is no bound, but for ``adapt``, where it is *batch*.
        noise: Noise scale, samples; None is not known yet.
        mode: None is what the job was submitted with (``dlsubmit --batch``).

    Raises:
        ValueError: The mode has no such name, or a number is below 1.
    """
    mode = mode or os.environ.get(BATCH_VARIABLE) or "fixed"
    if mode not in MODES:
        msg = f"split: mode must be one of {', '.join(MODES)} (got {mode!r})"
        raise ValueError(msg)
    if min(batch, gpus, asked_gpus, least_local) < 1 or most_local < least_local:
        msg = "split: batch, gpus, asked_gpus and least_local must be 1 or more, most_local no less"
        raise ValueError(msg)
    wanted = float(batch)
    if mode == "gpu":
        wanted = batch * gpus / asked_gpus
    elif mode == "elan":
        wanted = max(batch, gpus * least_local)
    elif mode == "adapt":
        most = batch if most is None else most
        wanted = max(batch, noise or 0.0)
    whole = batch if mode == "fixed" else round(min(wanted, most or wanted))
    passes = max(1, -(-whole // (gpus * most_local)))
    local = -(-whole // (gpus * passes))
    if mode != "fixed":
        if most is not None and gpus * local * passes > most:
            local = max(1, local - 1)
        whole = gpus * local * passes
    most = whole if mode == "fixed" or most is None else most
    return Split(gpus, local, passes, whole, batch, most, least_local, most_local)


def linear(scale: float) -> float:
    """Factor of the learning rate for *scale* times the batch (Goyal et al. 2017, section 2.1)."""
    return scale


def square_root(scale: float) -> float:
    """The factor that keeps the variance of a step (Krizhevsky 2014, section 5)."""
    return math.sqrt(scale)


def adascale(scale: float, var: float, sqr: float) -> float:
    """The gain ratio, from 1 to *scale* (Johnson et al. 2020, "AdaScale SGD", section 3).

    (var + sqr) / (var / scale + sqr): *scale* if all is noise, 1 if nothing is. It is also the
    number of steps with the first batch that one step is worth.

    Args:
        var: Trace of the gradient's covariance with the first batch.
        sqr: Square of the mean gradient's norm.
    """
    return (var + sqr) / (var / scale + sqr) if var > 0 or sqr > 0 else 1.0


def progressive(before: float, after: float, step: int, steps: int) -> float:
    """The factor *step* steps after a change of size: a line from *before* to *after*.

    As in Elan (Xie et al. 2020). From *steps* steps on it is *after*.
    """
    return after if step >= steps else before + (after - before) * max(step, 0) / steps


class GradientNoise:
    """Estimates of the gradient and its noise from the gradients of single passes.

    With n gradients g of b samples each and their mean m (McCandlish et al. 2018, appendix A.1):

        sqr = (n |m|^2 - mean |g|^2) / (n - 1)
        var = (mean |g|^2 - |m|^2) n b / (n - 1)

    are without bias the square of the true gradient's norm, and the trace of the covariance of one
    sample's gradient. Both are exponential means whose bias towards the start is taken out.

    A hook of each parameter sees the gradient of a pass on this rank before
    DistributedDataParallel averages it, under ``no_sync`` too. Losses must not be scaled (as
    ``GradScaler`` does) but by 1 / passes.

    Args:
        parameters: Of the model; those that need no gradient are left out.
        smoothing: Weight of what was estimated before, from 0 to below 1.
    """

    def __init__(self, parameters: Iterable[Any] = (), *, smoothing: float = 0.99) -> None:
        self._smoothing = smoothing
        self._means = [0.0, 0.0, 0.0]
        """sqr, var and the weight of both."""
        self._parameters = [p for p in parameters if p.requires_grad]
        self._local: Any = 0.0
        for parameter in self._parameters:
            parameter.register_hook(self._hook)

    @property
    def sqr(self) -> float:
        """Square of the norm of the mean gradient; 0 before the first measurement."""
        return max(0.0, self._means[0] / self._means[2]) if self._means[2] else 0.0

    @property
    def var(self) -> float:
        """Trace of the covariance of one sample's gradient; 0 before the first measurement."""
        return max(0.0, self._means[1] / self._means[2]) if self._means[2] else 0.0

    @property
    def scale(self) -> float | None:
        """Noise scale var / sqr, samples; None if it is not known."""
        return self.var / self.sqr if self.sqr > 0 else None

    def see(self, passes: int, local_batch: float, mean_square: float, of_mean: float) -> None:
        """Take in one step; one of a single pass, or of numbers that are not finite, tells nothing.

        Args:
            passes: n, of all GPUs together.
            local_batch: b, samples.
            mean_square: Mean of the squares of the passes' norms.
            of_mean: Square of the norm of the passes' mean.
        """
        if passes < 2 or not math.isfinite(mean_square + of_mean):  # noqa: PLR2004
            return
        sqr = (passes * of_mean - mean_square) / (passes - 1)
        var = (mean_square - of_mean) * passes * local_batch / (passes - 1)
        kept, new = self._smoothing, 1 - self._smoothing
        self._means = [kept * m + new * x for m, x in zip(self._means, (sqr, var, 1.0))]

    def measure(self, part: Split, all_reduce: Callable[[Any], object] | None = None) -> None:
        """Take in the step whose gradients are in the parameters now, on all ranks.

        Args:
            all_reduce: Adds a tensor over the ranks in place, as ``torch.distributed.all_reduce``;
                None if there is one rank.
        """
        local, self._local = self._local, 0.0
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if not gradients or isinstance(local, float):
            return
        if all_reduce is not None:
            all_reduce(local)
        passes = part.gpus * part.passes
        # Each loss was divided by the passes of its rank.
        mean_square = float(local) * part.passes**2 / passes
        of_mean = sum(float(g.detach().double().square().sum()) for g in gradients)
        self.see(passes, part.batch / passes, mean_square, of_mean)

    def state(self) -> list[float]:
        """State for a checkpoint; `load` takes it."""
        return list(self._means)

    def load(self, state: Iterable[float]) -> None:
        """Go on from `state`."""
        sqr, var, weight = map(float, state)
        self._means = [sqr, var, weight]

    def _hook(self, gradient: Any) -> None:  # noqa: ANN401 - a tensor
        self._local = self._local + gradient.detach().double().square().sum()

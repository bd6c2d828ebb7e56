"""The same policies under each of several cost models, those that can run there.

A preset that says itself when to decide cannot run on a Slurm, and a policy may have parameters
that must be set first: they are told apart, with the reason, and so is one whose simulation fails.
The others are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from slurm_dl.experiments import cluster_presets, comparison, sweep
from slurm_dl.experiments.comparison import Comparison
from slurm_dl.experiments.placement_choice import PLAIN, PlacementSetup
from slurm_dl.experiments.simulation_run import PolicySpec
from slurm_dl.experiments.sweep import CellError, CellResult, Failure, Sweep
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Trace
from slurm_dl.simulation.cluster_shape import parse_shape

OF_PRESETS: Final = "of the presets"
"""The cost model where none was chosen."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A policy that cannot run under a cost model.

    Attributes:
        label: The policy as reports call it.
        why: In words.
    """

    label: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModelPlan:
    """What is run under one cost model.

    Attributes:
        sweep: The policies that can run there.
        refused: Those that cannot.
    """

    sweep: Sweep
    refused: tuple[Refused, ...] = ()

    @property
    def costs(self) -> str:
        """The cost model in the words of ``--costs``."""
        return self.sweep.costs or OF_PRESETS


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What came of several plans.

    Attributes:
        comparisons: For each cost model, of the policies of which no simulation failed; a cost
            model under which each policy failed has none.
        refused: By cost model, the policies that cannot run there.
        failures: By cost model, the simulations that failed.
    """

    comparisons: tuple[Comparison, ...]
    refused: dict[str, tuple[Refused, ...]]
    failures: dict[str, tuple[Failure, ...]]


def costs_of(comparison: Comparison) -> str:
    """The cost model as reports name it; several if each preset has its own."""
    return "; ".join(dict.fromkeys(result.costs for result in comparison.results))


def plans(
    wishes: Sequence[PolicySpec],
    trace: Trace,
    costs: Sequence[str | None],
    *,
    lenient: bool,
    loads: tuple[float, ...],
    seeds: int,
    cluster: str,
    ground: PlacementSetup = PLAIN,
) -> tuple[CostModelPlan, ...]:
    """A plan for each cost model.

    Args:
        costs: What ``--costs`` said, each once; None: what each preset has.
        lenient: Policies that can run nowhere are told apart, too, and are no error.

    Raises:
        ConfigError: The cluster, the costs or a parameter are wrong, a policy that was named can
            run under none of the cost models, or no policy can run under one of them.
    """
    parse_shape(cluster)
    found = []
    for word in costs:
        cluster_presets.is_slurm(word)
        if costs.count(word) > 1:
            msg = f"--costs: {word} is given twice"
            raise ConfigError(msg)
        whole = Sweep(
            wishes=tuple(wishes), loads=loads, seeds=seeds, cluster=cluster, costs=word,
            ground=ground,
        )  # fmt: skip
        refused = {wish.short_label: _refusal(whole, wish, trace) for wish in wishes}
        found.append((whole, refused))
    for wish in wishes:
        errors = [refused[wish.short_label] for _, refused in found]
        first = errors[0]
        if all(errors) and first is not None and (wish.parameters or not lenient):
            raise first
    return tuple(_plan(whole, refused) for whole, refused in found)


def _refusal(whole: Sweep, wish: PolicySpec, trace: Trace) -> ConfigError | None:
    try:
        sweep.check_wish(whole, wish, trace)
    except ConfigError as err:
        return err
    return None


def _plan(whole: Sweep, refused: dict[str, ConfigError | None]) -> CostModelPlan:
    left = tuple(wish for wish in whole.wishes if refused[wish.short_label] is None)
    told = tuple(Refused(label, str(err)) for label, err in refused.items() if err is not None)
    if not left:
        msg = f"--costs {whole.costs}: no policy can run: {told[0].label}: {told[0].why}"
        raise ConfigError(msg)
    return CostModelPlan(
        sweep=Sweep(
            wishes=left, loads=whole.loads, seeds=whole.seeds, cluster=whole.cluster,
            costs=whole.costs, ground=whole.ground,
        ),
        refused=told,
    )  # fmt: skip


def run(
    plans: Sequence[CostModelPlan],
    simulate: Callable[[Sweep, Callable[[Failure], None]], list[CellResult]],
) -> Ran:
    """Run all of *plans*.

    Args:
        simulate: Runs all cells of a sweep; what fails is told to its second argument, and the
            results are those of the others, in the order of the cells.

    Raises:
        CellError: Simulations of all policies failed, under each of the cost models.
    """
    found: list[Comparison] = []
    failed: dict[str, tuple[Failure, ...]] = {}
    for plan in plans:
        failures: list[Failure] = []
        results = simulate(plan.sweep, failures.append)
        left, kept = sweep.without(plan.sweep, results, failures)
        failed[plan.costs] = tuple(failures)
        if left is not None:
            found.append(comparison.merge(left, kept))
    if not found:
        raise CellError("\n".join(f.why for failures in failed.values() for f in failures))
    refused = {plan.costs: plan.refused for plan in plans}
    return Ran(comparisons=tuple(found), refused=refused, failures=failed)


def left_out(ran: Ran) -> Iterator[str]:
    """What could not be run and why, in words."""
    for costs, refused in ran.refused.items():
        for why in dict.fromkeys(one.why for one in refused):
            labels = ", ".join(one.label for one in refused if one.why == why)
            yield f"not run with costs {costs}: {labels}: {why}"
    for costs, failures in ran.failures.items():
        yield from (f"failed with costs {costs}: {failure.why}" for failure in failures)


def as_json(trace: Trace, ran: Ran) -> dict[str, object]:
    """All of it as plain values: the keys of `comparison.as_json`, and what could not be run."""
    return {
        **comparison.as_json(trace, *ran.comparisons),
        "refused": [
            {"policy": refused.label, "costs": costs, "why": refused.why}
            for costs, several in ran.refused.items()
            for refused in several
        ],
        "failed": [
            {
                "policy": failure.cell.label,
                "costs": costs,
                "load": failure.cell.load,
                "seed": failure.cell.seed,
                "why": failure.why,
            }
            for costs, several in ran.failures.items()
            for failure in several
        ],
    }

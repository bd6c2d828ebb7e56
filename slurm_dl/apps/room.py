"""What of the cluster's room is of no use, and what is promised that is not there."""

from __future__ import annotations

from slurm_dl.config.placement import PlacementSection
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.placement.cells import Cells
from slurm_dl.placement.stock import Stock
from slurm_dl.placement.strands import strands


def stranded_gpus(snap: Snapshot) -> float:
    """Free GPUs on nodes that have no CPUs or no memory left to go with them."""
    stock = Stock.of(snap, {})
    return float(strands(stock) @ stock.count)


def misfit(section: PlacementSection, snap: Snapshot) -> str:
    """Why the cluster cannot keep what the configured cells promise; empty if it can."""
    scheme, _ = section.make()
    if not isinstance(scheme, Cells):
        return ""
    try:
        scheme.check(snap)
    except ConfigError as err:
        return str(err)
    return ""

"""A `Store` that keeps nothing: the ledger of a simulation lives as long as the simulation."""

from __future__ import annotations

from slurm_dl.engine.memory import Change, Memory
from slurm_dl.engine.service import Service
from slurm_dl.model.ids import HandoverId


class MemoryStore:
    """Begins empty, and lets everything that is written go; see `Store`."""

    def load(self) -> Memory:
        """Nothing is remembered."""
        return Memory(
            service=Service.empty(), handovers=(), next_handover_id=HandoverId(1), taken=()
        )

    def save(self, change: Change, /) -> None:
        """The ledger has it in memory already."""

    def close(self) -> None:
        """There is nothing to let go of."""

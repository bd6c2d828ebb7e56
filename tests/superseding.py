"""Take the lease on a ledger, as a daemon does that takes over."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from slurm_dl.ledger.sqlite.lease_row import LeaseRow


def supersede(path: Path) -> int:
    """Take the lease on the ledger *path*, whoever has it: the generation to write it with."""
    with closing(LeaseRow(path)) as row:
        lease = row.take(row.read(), lease_s=60.0)
    return lease.generation

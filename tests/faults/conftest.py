from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from schedd import Schedd, schedd_in

from slurm_dl.sandbox import Sandbox


@pytest.fixture
def place(sandbox: Sandbox, short_directory: Path) -> Iterator[Schedd]:
    """A place for daemons on the shared cluster, none started."""
    with schedd_in(sandbox, short_directory) as daemon:
        yield daemon

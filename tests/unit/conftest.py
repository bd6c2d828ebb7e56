from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a ledger."""
    return tmp_path / "ledger.sqlite"

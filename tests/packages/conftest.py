"""The scripts of packaging/, which are run by their path, as modules."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tools" / "packaging"))

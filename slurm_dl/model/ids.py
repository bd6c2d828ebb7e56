"""Types for things that are all integers or all strings and must not be swapped."""

from __future__ import annotations

from typing import NewType

JobId = NewType("JobId", int)
"""Slurm's own job id of one record (``%A``); for a pending array it is the array's id."""

HandoverId = NewType("HandoverId", int)
"""Number of a hand-over in the ledger; it never comes back."""

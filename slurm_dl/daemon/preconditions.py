"""The conditions under which the daemon may act, each of which can forbid it at any moment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from slurm_dl.model.errors import SlurmDlError


class WithdrawnError(SlurmDlError):
    """A permit will not come back: the loop is to end, and to touch nothing more."""


class Precondition(Protocol):
    """One condition. It is asked before each cycle and again before each action."""

    def why_not(self) -> str:
        """The reason to apply nothing, as the end of "only looking: ..."; empty if there is none.

        Raises:
            WithdrawnError: Nothing may be done any more.
        """


def first_refusal(preconditions: Iterable[Precondition]) -> str:
    """Reason of the first of *preconditions* that forbids actions; empty if none does.

    Raises:
        WithdrawnError: One of them is gone for good.
    """
    return next((why for precondition in preconditions if (why := precondition.why_not())), "")

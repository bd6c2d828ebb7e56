"""What a policy must keep to, ours or a site's, as checks to be called from any test.

Three lines in a project's own tests put a policy through all of them::

    @pytest.mark.parametrize("check", ALL_CHECKS, ids=lambda check: check.__name__)
    def test_my_policy_keeps_the_contract(check):
        check(MyPolicy())

A check takes a policy that is ready to order jobs, and raises `ContractFailure`, an AssertionError,
with a sentence that says on which snapshot it broke what. `CHECKS` ask about snapshots
(milliseconds), `RUNS` simulate days (seconds). ``python -m slurm_dl.testing NAME`` does the same
without pytest.

It stands beside the applications: nothing of the package needs it to run.
"""

from __future__ import annotations

from slurm_dl.testing.checks import CHECKS, Check, ContractFailure
from slurm_dl.testing.simulation_checks import RUNS, Stream, starved_in, streams
from slurm_dl.testing.situations import Situation, situations

ALL_CHECKS: tuple[Check, ...] = (*CHECKS, *RUNS)  # Everything there is

__all__ = [
    "ALL_CHECKS",
    "CHECKS",
    "RUNS",
    "Check",
    "ContractFailure",
    "Situation",
    "Stream",
    "situations",
    "starved_in",
    "streams",
]

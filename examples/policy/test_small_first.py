"""What every policy must keep to, on ours: ``pytest examples/policy``."""

import pytest
from small_first import SmallFirst

from slurm_dl.testing import ALL_CHECKS, Check


@pytest.mark.parametrize("check", ALL_CHECKS, ids=lambda check: check.__name__)
def test_small_first_keeps_the_contract(check: Check) -> None:
    """One test for each check."""
    check(SmallFirst())

"""All checks, in the order in which they are shown, and the loop over them."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_dl.doctor import (
    directory_checks,
    installation_checks,
    order_checks,
    placement_checks,
    preemption_checks,
    record_checks,
    slurm_checks,
)
from slurm_dl.doctor.check_result import REGISTERED, CheckResult, error, skipped
from slurm_dl.doctor.site import Site
from slurm_dl.model.errors import SlurmDlError

_MODULES = (
    *(slurm_checks, order_checks, preemption_checks, placement_checks),
    *(record_checks, directory_checks, installation_checks),
)
CHECKS = {name: run for m in _MODULES for name, run in REGISTERED[m.__name__].items()}
"""Every check by its name."""


def examine(
    site: Site, names: Iterable[str] | None = None, faults: tuple[type[Exception], ...] = ()
) -> dict[str, CheckResult]:
    """Results of the checks *names*, by default all; one that cannot be made has the reason.

    One that raises one of *faults* is told as an error; other exceptions are passed on.
    """
    told = {}
    for name in CHECKS if names is None else names:
        try:
            told[name] = CHECKS[name](site)
        except SlurmDlError as err:
            told[name] = skipped(str(err))
        except OSError as err:
            told[name] = skipped(f"{err.filename}: {err.strerror}")
        except faults as err:
            told[name] = error(f"the check failed: {err!r}", "report it: a fault of slurm_dl")
    return told

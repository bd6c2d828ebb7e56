"""``python -m slurm_dl.testing NAME``: installed policies and all checks, without pytest."""

from __future__ import annotations

import sys

import click

from slurm_dl.model.errors import ConfigError
from slurm_dl.policies import registry
from slurm_dl.policies.base import Policy
from slurm_dl.testing import ALL_CHECKS, ContractFailure, starved_in


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def main(names: tuple[str, ...]) -> None:
    """Check that policies keep the contract; the exit status is 1 if one does not.

    \b
    Example:
      python -m slurm_dl.testing discrete_las
    """  # noqa: D301 - \b is click's mark
    broken = 0
    for name in names:
        try:
            policy = registry.find(name)()
        except (ConfigError, TypeError) as err:
            raise click.UsageError(str(err)) from None
        broken += _checked(policy)
    if broken:
        raise SystemExit(1)


def _checked(policy: Policy) -> int:
    """How many checks the policy breaks; tells of each."""
    broken = 0
    for check in ALL_CHECKS:
        said = "ok"
        try:
            check(policy)
        except ContractFailure as err:
            said, broken = f"BROKEN: {err}", broken + 1
        click.echo(f"{policy.name}: {check.__name__.replace('_', ' ')}: {said}")
    if policy.about.starves:
        where = ", ".join(f"'{name}'" for name in starved_in(policy))
        click.echo(f"{policy.name}: starves an old job in: {where or 'no stream that was tried'}")
    return broken


if __name__ == "__main__":
    sys.exit(main())

"""Keys of the configuration that choose something by its name, and set its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic_core import InitErrorDetails

from slurm_dl.config.parameters import Family, Mistake, T
from slurm_dl.config.value_types import FrozenMapping, refuse_all, wrong


def checked_name(family: Family[T], name: str) -> str:
    """*name*, or the error that says what is wrong with it."""
    try:
        return family.check(name)
    except ValueError as err:
        raise wrong(str(err)) from None


def checked_parameters(
    family: Family[T], name: str, given: Mapping[str, object]
) -> Mapping[str, object]:
    """All parameters of *name*, or the errors that say what is wrong with *given*."""
    whole, mistakes = family.complete(name, given)
    if mistakes:
        refuse_all(details_of(mistakes))
    return FrozenMapping(tuple(whole.items()))


def details_of(mistakes: Iterable[Mistake], *above: str) -> list[InitErrorDetails]:
    """*mistakes* as pydantic has them, below the keys *above*."""
    return [
        InitErrorDetails(type=wrong(m.text), loc=(*above, *m.loc), input=m.value) for m in mistakes
    ]

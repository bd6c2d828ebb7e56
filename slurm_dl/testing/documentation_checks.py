"""What a policy has to say of itself: its parameters, and what people should know."""

from __future__ import annotations

import dataclasses
import re
import typing
from typing import Final

import yaml

from slurm_dl.config import parameters
from slurm_dl.error_text import written
from slurm_dl.model.snapshot import Snapshot
from slurm_dl.policies.base import About, Level, Policy
from slurm_dl.testing.contract_failure import Check, fail

_KNOWN_NEEDS: Final = frozenset(
    {
        *(f.name for f in dataclasses.fields(Snapshot)),
        *("profile", "history", "accounts", "texts", "claims"),
    }
)
"""What `About.needs` may name."""


def its_parameters_are_documented(policy: Policy) -> None:
    """It can be configured: each field has a meaning, a default and a type that YAML can give.

    Raises:
        Broken: It cannot.
    """
    kind = type(policy)
    if lacking := parameters.POLICY.lacks(kind):
        fail(policy, "", f"lacks {', '.join(lacking)}")
    try:
        found = parameters.parameters_of(kind)
    except (TypeError, NameError) as err:
        fail(policy, "", f"cannot be configured: {err}")
    for p in found:
        if not p.meaning:
            fail(policy, "", f"parameter {p.name} is not in the docstring's Attributes")
        if p.default is dataclasses.MISSING:
            fail(policy, "", f"parameter {p.name} has no default")
    if not getattr(kind, "__dataclass_params__").frozen:  # noqa: B009 - mypy does not know it
        fail(policy, "", "it is not frozen")
    given = {p.name: yaml.safe_load(written(getattr(policy, p.name))) for p in found}
    family = dataclasses.replace(parameters.POLICY, find=lambda _: kind)
    whole, mistakes = family.complete(policy.name, given)
    if mistakes:
        fail(policy, "", f"parameter {mistakes[0].loc}: {mistakes[0].text}, as YAML gives it")
    if family.make(policy.name, whole) != policy:
        fail(policy, "", "is another one after its parameters were written down and read")


def it_says_what_people_should_know(policy: Policy) -> None:
    """`about`, `source` and `interpretation` are complete.

    Raises:
        Broken: Something is missing, or is nothing that anybody knows.
    """
    about = policy.about
    if not isinstance(about, About):
        fail(policy, "", "about is no About")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", policy.name):
        fail(policy, "", "its name is not small letters, digits and _")
    texts = {"source": policy.source, "about.row": about.row, "about.formula": about.formula}
    for name, text in texts.items():
        if not text.strip():
            fail(policy, "", f"{name} is empty")
    if about.level not in typing.get_args(Level):
        fail(policy, "", f"about.level {about.level!r} is none of {typing.get_args(Level)}")
    if unknown := [need for need in about.needs if need not in _KNOWN_NEEDS]:
        fail(policy, "", f"about.needs: nobody knows {', '.join(unknown)}")
    if about.needs and not about.fallback:
        fail(policy, "", "about.needs something; about.fallback must say what it does without")


ABOUT: tuple[Check, ...] = (its_parameters_are_documented, it_says_what_people_should_know)
"""Both."""

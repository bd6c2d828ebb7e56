"""Parameters of the chosen policy: checked against its dataclass fields, made into the policy.

A policy knows nothing of configuration files. What its fields, types and ``ValueError`` say is all
there is, so a policy that a site plugs in is checked as well as ours.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from slurm_dl.config.document import Loc
from slurm_dl.config.wording import sentence, shown, unknown_key
from slurm_dl.model.errors import ConfigError
from slurm_dl.policies import registry
from slurm_dl.policies.base import Policy, Preempts

_STRICT = ConfigDict(strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Mistake:
    """Something wrong at *loc*, counted from ``policy.parameters``."""

    loc: Loc
    text: str
    value: object


@dataclass(frozen=True, slots=True)
class Parameter:
    """One field of a policy's dataclass.

    Attributes:
        default: Its default; `dataclasses.MISSING` if it must be given.
        meaning: What the class's docstring says about it; empty if nothing.
    """

    name: str
    hint: typing.Any
    default: object
    meaning: str


def check_order(name: str) -> str:
    """*name* if there is such a policy and it can be configured.

    Raises:
        ValueError: There is none, or what a plugin provides cannot be used; says so.
    """
    names = registry.names()
    if name not in names:
        possible = [n for n in names if _is_for_slurm(n)]
        msg = f"must be one of {', '.join(possible)} (got {shown(name)})"
        raise ValueError(msg)
    if not _is_for_slurm(name):
        msg = (
            f"policy {name!r} runs in the simulator only: it lets any better job displace any "
            "other, and Slurm is told tiers"
        )
        raise ValueError(msg)
    try:
        policy = registry.find(name)
        for parameter in parameters_of(policy):
            _adapter(parameter)
        _check_members(policy)
    except ConfigError as err:
        raise ValueError(str(err)) from err
    except (TypeError, NameError, PydanticUserError) as err:
        msg = f"policy {name!r} cannot be configured: {err}"
        raise ValueError(msg) from err
    return name


def _check_members(policy: type[object]) -> None:
    """Raise if *policy* lacks what the engine asks of one.

    Raises:
        TypeError: Says what is missing.
    """
    lacks = [
        name
        for name in ("source", "interpretation", "tiers", "order", "next_change_s")
        if not hasattr(policy, name)
    ]
    if getattr(policy, "preempts", None) not in typing.get_args(Preempts):
        lacks.append(f"preempts (one of {', '.join(typing.get_args(Preempts))})")
    if not isinstance(getattr(policy, "skips", None), bool):
        lacks.append("skips (true or false)")
    if lacks:
        msg = f"it lacks {', '.join(lacks)}; see slurm_dl.policies.base.Policy"
        raise TypeError(msg)


def _is_for_slurm(name: str) -> bool:
    try:
        return registry.runs_on_slurm(registry.find(name))
    except (ConfigError, AttributeError):
        return True  # What is wrong with it is said where it is used.


def parameters_of(policy: type[object]) -> tuple[Parameter, ...]:
    """What can be set of a policy, in the order of its fields.

    Raises:
        TypeError: It is not a dataclass.
        NameError: A type it names does not exist.
    """
    if not dataclasses.is_dataclass(policy):
        msg = "it is not a dataclass"
        raise TypeError(msg)
    hints = typing.get_type_hints(policy)
    # A policy made from another one need not repeat what their parameters mean.
    docs = [inspect.cleandoc(kind.__doc__ or "") for kind in reversed(policy.__mro__)]
    meanings = dict(pair for doc in docs for pair in _attributes(doc))
    return tuple(
        Parameter(field.name, hints[field.name], _default(field), meanings.get(field.name, ""))
        for field in dataclasses.fields(policy)
        if field.init
    )


def complete(name: str, given: Mapping[str, object]) -> tuple[dict[str, object], list[Mistake]]:
    """All parameters of a policy, the defaults filled in, and everything wrong with *given*."""
    known = {parameter.name: parameter for parameter in parameters_of(registry.find(name))}
    mistakes = [
        Mistake((key,), unknown_key(key, known), value)
        for key, value in given.items()
        if key not in known
    ]
    whole: dict[str, object] = {}
    unknown = len(mistakes)
    for key, parameter in known.items():
        if key not in given:
            whole[key] = parameter.default
            if parameter.default is dataclasses.MISSING:
                mistakes.append(Mistake((key,), "is required", None))
            continue
        try:
            whole[key] = _adapter(parameter).validate_python(_tuples(given[key]))
        except ValidationError as err:
            for detail in err.errors(include_url=False):
                loc = (key, *detail["loc"])
                mistakes.append(Mistake(loc, sentence(detail), detail["input"]))
    if len(mistakes) == unknown:
        try:
            make(name, whole)
        except ValueError as err:
            mistakes.append(Mistake(_about(str(err), known), str(err), None))
    return whole, mistakes


def make(name: str, parameters: Mapping[str, object]) -> Policy:
    """The policy, ready to order jobs.

    Raises:
        ValueError: The policy refuses its parameters.
    """
    build: typing.Callable[..., Policy] = registry.find(name)
    return build(**parameters)


def _default(field: dataclasses.Field[object]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _adapter(parameter: Parameter) -> TypeAdapter[object]:
    return TypeAdapter(parameter.hint, config=_STRICT)


def _tuples(value: object) -> object:
    """YAML's lists as the tuples that a frozen dataclass holds."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _about(text: str, names: typing.Collection[str]) -> Loc:
    """The first parameter that *text* names, to find its line."""
    words = re.findall(r"\w+", text)
    return next(((word,) for word in words if word in names), ())


def _attributes(doc: str) -> Iterator[tuple[str, str]]:
    """Names and meanings from the ``Attributes`` section of a docstring."""
    section = re.search(r"^Attributes:\n((?:[ ]+.*\n?|\n)*)", doc, re.MULTILINE)
    if section:
        for name, text in re.findall(
            r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section.group(1), re.MULTILINE
        ):
            yield name, " ".join(text.split())

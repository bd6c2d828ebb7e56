"""Parameters of what is chosen by name: checked against its dataclass fields, made into it.

Policies, schemes of placement and rules of placement know nothing of configuration files. What
their fields, types and ``ValueError`` say is all there is, so one that a site plugs in is checked
as well as ours.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails

from slurm_dl.config.value_types import FrozenMapping, refuse, refuse_all, wrong
from slurm_dl.error_text import sentence, unknown_key
from slurm_dl.model.errors import ConfigError
from slurm_dl.placement import scheme_registry as placement_registry
from slurm_dl.placement.candidate_nodes import Rule
from slurm_dl.placement.scheme import Scheme
from slurm_dl.policies import policy_file, registry
from slurm_dl.policies.base import About, Policy, Preempts
from slurm_dl.text import shown
from slurm_dl.yaml_places import Loc

T = TypeVar("T")

_MOST_NAMES = 12
"""Names that are all listed where one of them is expected."""

_STRICT = ConfigDict(strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Mistake:
    """Something wrong at *loc*, counted from where the parameters stand."""

    loc: Loc
    text: str
    value: object


@dataclass(frozen=True, slots=True)
class Parameter:
    """One field of a dataclass."""

    name: str
    hint: typing.Any
    default: object  # Its default; `dataclasses.MISSING` if it must be given
    meaning: str  # What the class's docstring says about it; empty if nothing


@dataclass(frozen=True, slots=True)
class Family(Generic[T]):
    """All that can be chosen by name in one place of the configuration.

    Attributes:
        what: What one of them is called.
        names: Every name there is.
        find: The class behind a name; raises `ConfigError` if there is none that can be loaded.
        lacks: What a class lacks of what the engine asks of one, in words.
        base: Where that is written down.
        why_not: Why one cannot be chosen although it is there; empty if it can.
        unlisted: Whether *find* may know a name that is not among the *names*.
    """

    what: str
    names: Callable[[], tuple[str, ...]]
    find: Callable[[str], type[T]]
    lacks: Callable[[type[object]], list[str]]
    base: str
    why_not: Callable[[type[object]], str] = lambda _: ""
    unlisted: Callable[[str], bool] = lambda _: False

    def check(self, name: str) -> str:
        """*name* if there is such a one and it can be configured.

        Raises:
            PydanticCustomError: There is none, or what a plugin provides cannot be used; says so.
        """
        names = self.names()
        if name not in names and not self.unlisted(name):
            possible = [n for n in names if not self._refused(n)]
            refuse(f"must be {self._one_of(name, possible)} (got {shown(name)})")
        if why := self._refused(name):
            refuse(f"{self.what} {name!r} {why}")
        try:
            self.usable(name)
        except ConfigError as err:
            raise wrong(str(err)) from err
        return name

    def usable(self, name: str) -> type[T]:
        """The class behind *name*, which has all that the engine asks of one.

        Raises:
            ConfigError: There is none, or what a plugin provides cannot be used; says so.
        """
        kind = self.find(name)
        try:
            _adapter(parameters_of(kind))
            if lacking := self.lacks(kind):
                msg = f"it lacks {', '.join(lacking)}; see {self.base}"
                raise TypeError(msg)  # noqa: TRY301 - as what a broken plugin raises by itself
        except (TypeError, NameError, PydanticUserError) as err:
            msg = f"{self.what} {name!r} cannot be configured: {err}"
            raise ConfigError(msg) from err
        return kind

    def complete(
        self, name: str, given: Mapping[str, object]
    ) -> tuple[dict[str, object], list[Mistake]]:
        """All its parameters, the defaults filled in, and everything wrong with *given*."""
        known = {parameter.name: parameter for parameter in parameters_of(self.find(name))}
        mistakes = [
            Mistake((key,), unknown_key(key, known), value)
            for key, value in given.items()
            if key not in known
        ]
        asked = [p for p in known.values() if p.name in given or p.default is dataclasses.MISSING]
        ours = {key: value for key, value in given.items() if key in known}
        try:
            # JSON, as of Python's own values a strict dataclass would have to be one already.
            (made,) = _adapter(asked).validate_json(json.dumps([ours]))
        except ValidationError as err:
            wrong_ones = err.errors(include_url=False)
            more = [Mistake(e["loc"][1:], sentence(e), e["input"]) for e in wrong_ones]
            return {}, mistakes + more
        whole = {key: getattr(made, key, p.default) for key, p in known.items()}
        try:
            self.make(name, whole)
        except ValueError as err:
            mistakes.append(Mistake(_about(str(err), known), str(err), None))
        return whole, mistakes

    def checked(self, name: str, given: Mapping[str, object]) -> FrozenMapping:
        """All its parameters.

        Raises:
            ValidationError: Everything that is wrong with *given*.
        """
        whole, mistakes = self.complete(name, given)
        if mistakes:
            refuse_all(details_of(mistakes))
        return FrozenMapping(tuple(whole.items()))

    def make(self, name: str, parameters: Mapping[str, object]) -> T:
        """It, ready to work.

        Raises:
            ValueError: It refuses its parameters.
        """
        build: Callable[..., T] = self.find(name)
        return build(**parameters)

    def _one_of(self, name: str, possible: list[str]) -> str:
        """The names there are, or of very many those that somebody may have meant."""
        if len(possible) <= _MOST_NAMES:
            return f"one of {', '.join(possible) or 'none, there is none'}"
        near = difflib.get_close_matches(name, possible, n=3)
        meant = f", perhaps {' or '.join(near)}" if near else f", such as {possible[0]}"
        return f"one of {len(possible)} {self.what} names{meant}"

    def _refused(self, name: str) -> str:
        try:
            return self.why_not(self.find(name))
        except (ConfigError, AttributeError):
            return ""  # What is wrong with it is said where it is used.


def _lacks_of(*members: str) -> Callable[[type[object]], list[str]]:
    return lambda kind: [name for name in members if not hasattr(kind, name)]


def _policy_lacks(kind: type[object]) -> list[str]:
    lacks = _lacks_of("source", "interpretation", "about", "tiers", "order", "next_change_s")(kind)
    if "about" not in lacks and not isinstance(getattr(kind, "about", None), About):
        lacks.append("about (an About)")
    if getattr(kind, "preempts", None) not in typing.get_args(Preempts):
        lacks.append(f"preempts (one of {', '.join(typing.get_args(Preempts))})")
    if not isinstance(getattr(kind, "skips", None), bool):
        lacks.append("skips (true or false)")
    return lacks + _lacks_of("name")(kind)


def _rule_lacks(kind: type[object]) -> list[str]:
    lacks = _lacks_of("source", "interpretation", "allows")(kind)
    if not isinstance(getattr(kind, "strict", None), bool):
        lacks.append("strict (true or false)")
    return lacks


def _simulator_only(kind: type[object]) -> str:
    if registry.runs_on_slurm(typing.cast("type[Policy]", kind)):
        return ""
    return "runs in the simulator only: what it does on Slurm has not been shown"


POLICY: Family[Policy] = Family(
    "policy",
    registry.names,
    registry.find,
    _policy_lacks,
    "slurm_dl.policies.base.Policy",
    _simulator_only,
    policy_file.is_file,
)
"""What can stand in ``policy.order``."""

SCHEME: Family[Scheme] = Family(
    "scheme",
    placement_registry.scheme_names,
    placement_registry.find_scheme,
    _lacks_of("source", "interpretation", "begin"),
    "slurm_dl.placement.scheme.Scheme",
)
"""What can stand in ``placement.scheme``."""

RULE: Family[Rule] = Family(
    "rule",
    placement_registry.rule_names,
    placement_registry.find_rule,
    _rule_lacks,
    "slurm_dl.placement.rule.Rule",
)
"""What can stand in ``placement.rules``."""


def details_of(mistakes: Iterable[Mistake], *above: str) -> list[InitErrorDetails]:
    """*mistakes* as pydantic has them, below the keys *above*."""
    return [
        InitErrorDetails(type=wrong(m.text), loc=(*above, *m.loc), input=m.value) for m in mistakes
    ]


def parameters_of(kind: type[object]) -> tuple[Parameter, ...]:
    """What can be set of a policy, a scheme or a rule, in the order of its fields.

    Raises:
        TypeError: It is not a dataclass.
        NameError: A type it names does not exist.
    """
    if not dataclasses.is_dataclass(kind):
        msg = "it is not a dataclass"
        raise TypeError(msg)
    hints = typing.get_type_hints(kind)
    # One made from another need not repeat what their parameters mean.
    docs = [inspect.cleandoc(above.__doc__ or "") for above in reversed(kind.__mro__)]
    meanings = dict(pair for doc in docs for pair in _attributes(doc))
    return tuple(
        Parameter(field.name, hints[field.name], _default(field), meanings.get(field.name, ""))
        for field in dataclasses.fields(kind)
        if field.init
    )


def _default(field: dataclasses.Field[object]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _adapter(parameters: Iterable[Parameter]) -> TypeAdapter[tuple[object]]:
    # Not of the policy itself: what it keeps beside its parameters may be of any type.
    kind = dataclasses.make_dataclass("Parameters", [(p.name, p.hint) for p in parameters])
    # pydantic takes no settings for a dataclass itself.
    return TypeAdapter(tuple[kind], config=_STRICT)  # type: ignore[valid-type,arg-type]


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

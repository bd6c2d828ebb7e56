from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from slurm_dl.config import Config, load
from slurm_dl.config.parameters import parameters_of
from slurm_dl.config.value_types import FrozenMapping
from slurm_dl.model import plugins
from slurm_dl.model.errors import ConfigError
from slurm_dl.policies import registry
from slurm_dl.policies.base import About
from slurm_dl.policies.fifo import Fifo


class Kept:
    """What a policy keeps for itself, of a type that no YAML can give."""


@dataclass(frozen=True, slots=True)
class Tiny:
    """A policy with parameters of every kind.

    Attributes:
        horizon_s: How far it looks,
            in seconds.
        mode: Which way.

    Nothing after the section belongs to it.
        stray: Not an attribute.
    """

    name: ClassVar[str] = "tiny"
    source: ClassVar[str] = "this test"
    interpretation: ClassVar[str] = ""
    about: ClassVar[About] = About(row="X1", level="W3", formula="none")
    preempts: ClassVar[str] = "tier"
    skips: ClassVar[bool] = True
    tiers: ClassVar[int] = 1
    order: ClassVar[object] = None
    next_change_s: ClassVar[object] = None
    horizon_s: float
    _: KW_ONLY
    mode: Literal["fast", "slow"] = "fast"
    weights: tuple[tuple[str, int], ...] = (("a", 1),)
    limit: int | None = None
    names: tuple[str, ...] = field(default_factory=lambda: ("x", "y"))
    derived: int = field(default=0, init=False)
    kept: Kept = field(default_factory=Kept, init=False, compare=False)

    def __post_init__(self) -> None:
        if self.mode == "slow" and self.horizon_s > 10:
            msg = "a slow policy looks at most 10 s ahead; see horizon_s"
            raise ValueError(msg)
        if self.limit == 13:
            msg = "unlucky"
            raise ValueError(msg)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "POLICIES", {"tiny": Tiny, "fifo": Fifo})


def config(tmp_path: Path, parameters: str, order: str = "tiny") -> Config:
    path = tmp_path / "f.yaml"
    path.write_text(
        f"manage: {{partitions: [gpu]}}\npolicy:\n  order: {order}\n  parameters: {parameters}\n"
    )
    return load(path)


def errors(tmp_path: Path, parameters: str, order: str = "tiny") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, parameters, order)
    return str(caught.value).replace(f"{tmp_path}/", "").splitlines()


@pytest.mark.usefixtures("tiny")
def test_any_dataclass_policy_is_checked_by_its_fields(tmp_path: Path) -> None:
    """A policy is configured by its own fields and types; no list of them is kept elsewhere."""
    policy = config(tmp_path, "{horizon_s: 3, weights: [[b, 2]], limit: 7}").policy
    made: object = policy.make()

    assert made == Tiny(3.0, weights=(("b", 2),), limit=7)
    assert dict(policy.parameters) == {
        "horizon_s": 3.0,
        "mode": "fast",
        "weights": (("b", 2),),
        "limit": 7,
        "names": ("x", "y"),
    }


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ("{}", [(".horizon_s", "required")]),
        (
            "{horizon_s: x, mode: medium, weights: [[b, 2.5], c], limit: true, zap: 1}",
            [
                (".horizon_s", "number (got 'x')"),
                (".limit", "whole number (got true)"),
                (".mode", "'slow' (got 'medium')"),
                (".weights.0.1", "whole"),
                (".weights.1", "list"),
                (".zap", "horizon_s, mode"),
            ],
        ),
        ("{horizon_s: .inf}", [(".horizon_s", "finite")]),
        (
            "{horizon_s: 11, mode: slow, horizon: 2}",
            [(".horizon", "mean horizon_s"), (".horizon_s", "slow")],
        ),
        ("{horizon_s: 1, limit: 13}", [("", "unlucky")]),
    ],
)
def test_wrong_parameters_are_all_found(
    tmp_path: Path, parameters: str, told: list[tuple[str, str]]
) -> None:
    """Types, unknown names and the policy's own refusal, each with its line, all at once."""
    found = errors(tmp_path, parameters)

    assert len(found) == len(told)
    for line, (key, word) in zip(found, told, strict=True):
        assert line.startswith(f"f.yaml:4: policy.parameters{key}: ")
        assert word in line


def test_meanings_come_from_the_docstring() -> None:
    """What a policy's docstring says of an attribute is what the reference says of its key."""
    meanings = {parameter.name: parameter.meaning for parameter in parameters_of(Tiny)}

    assert meanings["horizon_s"] == "How far it looks, in seconds."
    assert meanings["mode"] == "Which way."
    assert meanings["limit"] == ""
    assert "stray" not in meanings
    assert "derived" not in meanings


def test_policy_without_docstring_has_no_meanings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin need not document itself, and Python may have dropped its docstrings."""
    monkeypatch.setattr(Tiny, "__doc__", None)

    assert {parameter.meaning for parameter in parameters_of(Tiny)} == {""}


class NoDataclass:
    """Cannot be configured."""


@dataclass(frozen=True)
class UnknownType:
    """Names a type that is not there."""

    x: Nowhere  # type: ignore[name-defined]  # noqa: F821 - the point of it


@dataclass(frozen=True)
class OddType:
    """Has a field of a type that no YAML can give."""

    x: NoDataclass


@pytest.mark.parametrize(
    ("plugin", "word"),
    [
        ("nix", "fifo, tiny"),
        ("NoDataclass", "not a dataclass"),
        ("UnknownType", "'Nowhere'"),
        ("OddType", "policy 'site' cannot be configured"),
        ("Absent", "policy 'site' from"),
    ],
)
def test_a_policy_that_cannot_be_used_is_a_mistake_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugin: str, word: str
) -> None:
    """One line at policy.order, never a traceback; its parameters are not judged."""
    entry = EntryPoint("site", f"{__name__}:{plugin}", registry.ENTRY_POINT_GROUP)

    def entry_points(*, group: str) -> EntryPoints:
        return EntryPoints([entry] if group == registry.ENTRY_POINT_GROUP else [])

    if plugin == "nix":
        monkeypatch.setattr(registry, "POLICIES", {"tiny": Tiny, "fifo": Fifo})
    else:
        monkeypatch.setattr(plugins, "entry_points", entry_points)
    (line,) = errors(tmp_path, "{a: 1}", plugin if plugin == "nix" else "site")

    assert line.startswith("f.yaml:3: policy.order: ")
    assert word in line


def test_configuration_cannot_be_changed_but_copied() -> None:
    """The tree is frozen down to the parameters, and travels to a child process."""
    whole = Config.model_validate({"manage": {"partitions": ["gpu"]}})

    assert isinstance(whole.policy.parameters, FrozenMapping)
    assert isinstance(whole.policy.parameters, Mapping)
    assert len(whole.policy.parameters) == 3
    with pytest.raises(ValueError, match="frozen"):
        whole.daemon.poll_s = 1
    with pytest.raises(TypeError):
        whole.policy.parameters["promote_knob"] = 1  # type: ignore[index]
    assert copy.deepcopy(whole) == whole
    assert pickle.loads(pickle.dumps(whole)) == whole  # noqa: S301 - our own bytes
    assert Config.model_validate(whole.model_dump(mode="python")) == whole


@pytest.mark.parametrize("name", ["about", "preempts", "skips", "next_change_s", "interpretation"])
def test_a_policy_that_lacks_something_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """A plugin made for another version fails when the file is checked, not at the first look."""
    members = ("source", "interpretation", "about", "preempts", "skips", "tiers", "order")
    lacking = dataclasses.make_dataclass(
        "Lacking",
        [("horizon_s", float)],
        namespace={m: getattr(Tiny, m) for m in (*members, "next_change_s") if m != name},
    )
    monkeypatch.setattr(registry, "POLICIES", {"tiny": lacking})

    (line,) = errors(tmp_path, "{horizon_s: 1}")

    assert line.startswith("f.yaml:3: policy.order: ")
    assert f"lacks {name}" in line

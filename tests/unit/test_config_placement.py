"""The configuration of where jobs go: schemes and rules are checked by their own fields."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from slurm_dl.config import Config, derived_files, load, load_with_origins, show
from slurm_dl.config.parameters import parameters_of
from slurm_dl.model.errors import ConfigError
from slurm_dl.placement import scheme_registry
from slurm_dl.placement.best_fit import BestFit
from slurm_dl.policies.registry import POLICIES
from tools.docs import reference

HEAD = "manage: {partitions: [gpu]}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """A scheme with parameters.

    Attributes:
        wait_s: How long it waits.
    """

    name: ClassVar[str] = "near"
    source: ClassVar[str] = "this test"
    interpretation: ClassVar[str] = ""
    begin: ClassVar[object] = None
    wait_s: float
    mode: Literal["leaf", "spine"] = "leaf"

    def __post_init__(self) -> None:
        if self.wait_s < 0:
            msg = "wait_s must not be below 0"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """A rule with a parameter.

    Attributes:
        small_gpus: What is small.
    """

    name: ClassVar[str] = "apart"
    source: ClassVar[str] = "this test"
    interpretation: ClassVar[str] = ""
    strict: ClassVar[object] = True
    allows: ClassVar[object] = None
    small_gpus: int = 1


@dataclass(frozen=True, slots=True)
class Quiet(Apart):
    """A rule without parameters of its own."""

    name: ClassVar[str] = "quiet"
    strict: ClassVar[object] = False


@dataclass(frozen=True, slots=True)
class Lax(Apart):
    """A rule that does not say whether it is strict."""

    name: ClassVar[str] = "lax"
    strict: ClassVar[object] = "yes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lame:
    """A scheme that cannot begin."""

    source: ClassVar[str] = ""
    interpretation: ClassVar[str] = ""


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schemes and rules of the test alone."""
    schemes = {"best_fit": BestFit, "near": Near, "lame": Lame}
    rules = {"apart": Apart, "quiet": Quiet, "lax": Lax}
    monkeypatch.setattr(scheme_registry, "SCHEMES", schemes)
    monkeypatch.setattr(scheme_registry, "RULES", rules)


def configured(tmp_path: Path, text: str) -> Config:
    """What *text* below the managed partitions says."""
    path = tmp_path / "f.yaml"
    path.write_text(HEAD + text, "utf-8")
    return load(path)


def errors(tmp_path: Path, text: str) -> list[str]:
    """The mistakes in it."""
    with pytest.raises(ConfigError) as caught:
        configured(tmp_path, text)
    return str(caught.value).replace(f"{tmp_path}/", "").splitlines()


def test_a_site_that_says_nothing_leaves_it_to_slurm(tmp_path: Path) -> None:
    """No scheme, no rule, nobody is steered."""
    placement = configured(tmp_path, "").placement

    assert placement.make() == (None, ())
    assert placement.steer is False
    assert placement.in_words() == "left to Slurm"


def test_scheme_and_rules_are_made_with_their_parameters(tmp_path: Path) -> None:
    """In the order of the file; defaults are filled in; a rule may stand there alone."""
    text = "placement:\n  scheme: near\n  parameters: {wait_s: 5}\n  steer: true\n"
    text += "  rules:\n    quiet:\n    apart: {small_gpus: 2}\n"
    config = configured(tmp_path, text)
    placement = config.placement
    made: object = placement.make()

    assert made == (Near(wait_s=5.0), (Quiet(), Apart(small_gpus=2)))
    assert [type(v) for v in placement.parameters.values()] == [float, str]
    assert {name: dict(p) for name, p in placement.rules.items()} == {
        "quiet": {"small_gpus": 1},
        "apart": {"small_gpus": 2},
    }
    assert placement.in_words() == "near with quiet, apart; jobs are steered"
    assert "only said" in placement.model_copy(update={"steer": False}).in_words()
    with pytest.raises(TypeError):
        placement.rules["apart"]["small_gpus"] = 3  # type: ignore[index]
    # As a child process gets it.
    assert Config.model_validate(config.model_dump(mode="python")) == config


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("  scheme: nix\n  parameters: {a: 1}\n", [("3: scheme", "best_fit, lame, near")]),
        ("  scheme: lame\n", [("3: scheme", "lacks begin")]),
        (
            "  scheme: near\n  parameters:\n    wait_s: x\n    mode: star\n    wait: 1\n",
            [
                ("5: parameters.wait_s", "number"),
                ("6: parameters.mode", "'spine' (got 'star')"),
                ("7: parameters.wait", "mean wait_s"),
            ],
        ),
        ("  scheme: near\n", [("2: parameters.wait_s", "required")]),
        ("  scheme: near\n  parameters: {wait_s: -1}\n", [("4: parameters.wait_s", "below 0")]),
        (
            "  scheme: best_fit\n  rules:\n    apart: {small_gpus: 1.5, big: 2}\n    nix: {}\n",
            [
                ("5: rules.apart.big", "small_gpus"),
                ("5: rules.apart.small_gpus", "whole"),
                ("6: rules.nix", "apart, lax, quiet"),
            ],
        ),
        ("  scheme: best_fit\n  rules: {lax: {}}\n", [("4: rules.lax", "lacks strict")]),
        ("  scheme: best_fit\n  rules: [apart]\n", [("4: rules", "mapping")]),
        ("  scheme: best_fit\n  rules: {apart: 3}\n", [("4: rules.apart", "mapping")]),
        (
            "  parameters: {wait_s: 1}\n  rules: {apart: {}}\n  steer: true\n",
            [
                (f"{i}: {key}", "scheme")
                for i, key in ((3, "parameters"), (4, "rules"), (5, "steer"))
            ],
        ),
    ],
)
def test_every_mistake_has_its_line(tmp_path: Path, text: str, told: list[tuple[str, str]]) -> None:
    """Names, types, what a scheme itself refuses, and what would do nothing."""
    found = errors(tmp_path, f"placement:\n{text}")

    assert len(found) == len(told)
    for line, (place, word) in zip(found, told, strict=True):
        assert line.startswith(f"f.yaml:{place.replace(' ', ' placement.')}: ")
        assert word in line


@pytest.mark.parametrize(
    ("placement", "mode", "widest"),
    [
        ("{scheme: cells}", "native", 33_554_431),
        ("{scheme: cells, steer: true}", "external", 33_554_431),
        ("{scheme: cells, steer: true}", "native", 33_294_320),
    ],
)
def test_a_scheme_that_guarantees_nodes_has_each_tier_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placement: str, mode: str, widest: int
) -> None:
    """In native mode, where jobs are steered by it: 64 bands of 32 tiers, and half a one."""
    monkeypatch.undo()
    text = (
        f"placement: {placement}\npreemption: {{mode: {mode}, qos: dl}}\n"
        f"policy: {{parameters: {{thresholds_gpu_s: {list(range(1, 32))}}}}}\n"
    )

    configured(tmp_path, f"{text}ranking: {{band_width: {widest}}}\n")
    [found] = errors(tmp_path, f"{text}ranking: {{band_width: {widest + 1}}}\n")

    assert ("guarantees nodes, so there are 64 tiers" in found) == (widest == 33_294_320)


def test_rules_are_shown_each_with_its_line(tmp_path: Path) -> None:
    """As values that can be pasted back, and that can stand in JSON."""
    path = tmp_path / "f.yaml"
    path.write_text(
        f"{HEAD}placement:\n  scheme: best_fit\n"
        "  rules:\n    apart: {small_gpus: 2}\n    quiet:\n"
    )
    rows = {row.key: row for row in show(*load_with_origins(path))}

    assert rows["placement.rules.apart"].text == "{small_gpus: 2}"
    assert rows["placement.rules.apart"].origin == f"{path}:5"
    assert rows["placement.parameters"].text == "{}"
    assert json.loads(json.dumps(rows["placement.rules.quiet"].value)) == {"small_gpus": 1}


def test_the_page_and_the_schema_know_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be chosen, each with its parameters and whether a rule is strict."""
    for module in (reference, derived_files):
        monkeypatch.setattr(module, "SCHEMES", {"best_fit": BestFit, "near": Near})
        monkeypatch.setattr(module, "RULES", {"apart": Apart, "quiet": Quiet})
    page, schema = reference.reference(), derived_files.schema()
    section: dict[str, Any] = schema["$defs"]["PlacementSection"]

    assert '| `scheme` | `""` | empty, or one of best_fit, near |' in page
    assert "### `near`\n\nA scheme with parameters.\n\nSource: this test.\n\n| key |" in page
    assert "| `wait_s` | required | number | How long it waits. |" in page
    assert "### `apart`\n\nA rule with a parameter.\n\nSource: this test.\n\nStrict" in page
    assert "Source: this test.\n\nBroken where nothing else fits.\n" in page
    assert section["properties"]["scheme"]["enum"] == ["", "best_fit", "near"]
    near = section["allOf"][1]
    assert near["if"]["properties"] == {"scheme": {"const": "near"}}
    assert near["then"]["properties"]["parameters"]["properties"]["wait_s"]["type"] == "number"
    rules = section["properties"]["rules"]
    assert rules["additionalProperties"] is False
    assert rules["properties"]["apart"]["anyOf"][1] == {"type": "null"}
    assert len(schema["$defs"]["PolicySection"]["allOf"]) == len(POLICIES)


def test_all_that_ships_says_what_each_parameter_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """No parameter is without a sentence, and all can be configured."""
    monkeypatch.undo()
    ours = (*scheme_registry.SCHEMES.values(), *scheme_registry.RULES.values())
    for kind in (*ours, *POLICIES.values()):
        assert all(parameter.meaning for parameter in parameters_of(kind)), kind
    assert reference.reference().count("\n### `") == len(ours)

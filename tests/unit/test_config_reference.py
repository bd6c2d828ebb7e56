"""The reference of the configuration is true, and any text is a configuration or an error."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from slurm_dl.cli.dlctl.configuration import check_config
from slurm_dl.config import Config, load, show
from slurm_dl.config.loading import load_with_origins
from slurm_dl.config.tree import SECTIONS
from slurm_dl.config.value_types import NumberUnit
from slurm_dl.engine.settings import Preemption, Settings
from slurm_dl.error_text import written
from slurm_dl.model.errors import ConfigError
from slurm_dl.policies.base import About
from slurm_dl.policies.registry import POLICIES, runs_on_slurm
from tools.docs import policies_page, reference

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / reference.SAMPLE_PATH

FIELDS = [
    pytest.param(name, key, field, id=f"{name}.{key}")
    for name, section in SECTIONS.items()
    for key, field in section.model_fields.items()
]


GENERATED = {
    reference.SAMPLE_PATH: reference.sample,
    reference.REFERENCE_PATH: reference.reference,
    **{path: functools.partial(str, text) for path, text in policies_page.pages().items()},
}


@pytest.mark.parametrize("path", GENERATED, ids=str)
def test_committed_files_are_what_is_generated(path: Path) -> None:
    """Sample and pages never lag behind the tree."""
    regenerate = f"{path} is out of date: python -m tools.docs.reference"

    assert (ROOT / path).read_text() == GENERATED[path](), regenerate


def test_sample_is_valid_and_all_defaults() -> None:
    """An admin can start from the sample as it is: it only looks, and only names a partition."""
    assert load(SAMPLE) == Config.model_validate({"manage": {"partitions": ["gpu"]}})


def test_sample_with_every_key_uncommented_is_all_defaults(tmp_path: Path) -> None:
    """Deleting the '#' before any key leaves a valid file, and what it shows are the defaults."""
    path = tmp_path / "all.yaml"
    text, keys = re.subn(r"(?m)^(\s*)#(?=\w+:|  \w+:)", r"\1", SAMPLE.read_text())
    path.write_text(text)

    assert load(path) == load(SAMPLE)
    assert keys == len(FIELDS) - 1 + 3  # all but the partitions; three parameters of discrete_las


@pytest.mark.parametrize(("section", "key", "field"), FIELDS)
def test_every_key_has_a_sentence_a_unit_and_a_place_in_the_texts(
    section: str, key: str, field: FieldInfo
) -> None:
    """Each key is explained; numbers say what they count; seconds are called ``_s``."""
    assert field.description is not None
    assert re.fullmatch(r"[A-Z].*\.", field.description)
    units = [item.name for item in field.metadata if isinstance(item, NumberUnit)]
    assert len(units) == (field.annotation in {int, float})
    assert key.endswith("_s") == (bool(units) and units[0] in {"seconds", "writes per second"})
    assert field.is_required() == ((section, key) == ("manage", "partitions"))
    assert f"| `{key}` |" in reference.reference()


def test_numbers_have_bounds() -> None:
    """No number of the tree is unbounded on either side."""
    for definition in Config.model_json_schema()["$defs"].values():
        for key, schema in definition["properties"].items():
            if schema.get("type") in {"integer", "number"}:
                assert schema.keys() & {"minimum", "exclusiveMinimum"}, key
                assert schema.keys() & {"maximum", "exclusiveMaximum"}, key


def test_defaults_agree_with_the_engine() -> None:
    """A key that the engine knows has one default, not two.

    But for one: recorded decisions and simulations, in which saves never fail, are by the engine's.
    """
    config = load(SAMPLE)
    engine = {field.name: field.default for field in dataclasses.fields(Preemption)}
    engine["unsaved_share"] = 0.5
    # Who takes GPUs back is a type of its own there.
    ours = config.preemption.model_dump(exclude={"mode", "qos"})

    assert {key: engine[key] for key in ours} == ours
    settings = Settings(partitions=frozenset(config.manage.partitions))
    late = settings.overdue
    known = (
        settings.band_width,
        settings.window,
        settings.equals,
        late.pass_s,
        late.after_s,
        late.share,
        late.short_s,
        late.short_gpus,
        late.short_share,
        settings.hold,
    )
    assert known == tuple(dict(config.ranking).values())


def test_schema_knows_sections_policies_and_empty_sections() -> None:
    """An editor that uses the schema accepts what we accept, and refuses what we refuse."""
    schema = json.loads(CliRunner().invoke(check_config, ["--schema"]).output)
    policy = schema["$defs"]["PolicySection"]

    assert schema["properties"].keys() == SECTIONS.keys()
    assert schema["required"] == ["manage"]
    assert schema["properties"]["manage"] == {"$ref": "#/$defs/ManageSection"}
    assert {"type": "null"} in schema["properties"]["daemon"]["anyOf"]
    assert policy["properties"]["order"]["enum"] == [
        n for n, p in POLICIES.items() if runs_on_slurm(p)
    ]
    by_order = {
        case["if"]["properties"]["order"]["const"]: (case["if"]["required"], case["then"])
        for case in policy["allOf"]
    }
    assert by_order["discrete_las"][0] == []
    las = by_order["discrete_las"][1]["properties"]["parameters"]
    assert las["additionalProperties"] is False
    assert las["properties"]["thresholds_gpu_s"]["type"] == "array"
    assert by_order["fifo"] == (
        ["order"],
        {
            "properties": {
                "parameters": {"type": "object", "properties": {}, "additionalProperties": False}
            }
        },
    )
    assert schema["$defs"]["ControlSection"]["properties"]["admins"]["type"] == "array"


def test_only_files_that_changed_are_written(tmp_path: Path) -> None:
    """All into an empty folder, then one that somebody edited."""
    files = [tmp_path / path for path in GENERATED]
    assert reference.write(tmp_path) == files
    assert files[0].read_text() == reference.sample()
    files[2].write_text("old")
    assert reference.write(tmp_path) == [files[2]]
    assert files[2].read_text() == policies_page.pages()[policies_page.PAGE_PATH]


@dataclasses.dataclass(frozen=True)
class Site:
    """A site's | own."""

    name: ClassVar[str] = "site"
    source: ClassVar[str] = "here"
    preempts: ClassVar[str] = "tier"
    interpretation: ClassVar[str] = ""
    skips: ClassVar[bool] = True
    about: ClassVar[About] = About(row="A7", level="W1", formula="x | y")
    must_s: float
    words: tuple[str, ...] = ("a b", "true")
    maybe: str | None = None


def test_what_must_be_given_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters without a default are marked, the others shown as they would be written."""
    monkeypatch.setattr(policies_page, "POLICIES", {"site": Site})

    page = policies_page.pages()[policies_page.DIRECTORY / "site.md"]

    assert page.startswith("# `site`\n")
    assert "\nA site's | own.\n\n- **Source**: here (row A7)\n- **Level**: [W1](" in page
    assert "| `must_s` | required | number |  |" in page
    assert '| `words` | `["a b", "true"]` | list |  |' in page
    assert "| `maybe` | `null` | text |  |" in page


def test_the_page_says_of_each_policy_what_it_says_of_itself() -> None:
    """A row and a section each, in the order of the published systems; nothing is left out."""
    pages = policies_page.pages()
    table = pages.pop(policies_page.PAGE_PATH)
    rows = re.findall(r"(?m)^\| \[`(\w+)`\]\(policies/(\w+)\.md\) \| ([A-Z])(\d+)", table)
    told = {path.stem: text for path, text in pages.items()}

    assert {name for name, *_ in rows} == set(POLICIES) == set(told)
    assert all(name == page for name, page, *_ in rows)
    systems = [(letter, int(number)) for _, _, letter, number in rows]
    assert systems == sorted(systems)
    for name, kind in POLICIES.items():
        about = kind.about
        texts = (kind.source, about.formula, about.fallback, about.starves, about.idles)
        texts += (kind.interpretation, *about.needs, *about.trusts)
        assert all(text in told[name] for text in texts), name
        assert ("| Slurm, dlsim |" in _row_of(name, table)) == runs_on_slurm(kind)
        for field in dataclasses.fields(kind):  # type: ignore[arg-type]
            assert f"| `{field.name}` |" in told[name]


@pytest.mark.parametrize("name", [n for n, kind in POLICIES.items() if runs_on_slurm(kind)])
def test_what_a_policys_page_says_to_write_is_taken(name: str, tmp_path: Path) -> None:
    """The section of the configuration that it shows is read, and makes that policy."""
    page = policies_page.pages()[policies_page.DIRECTORY / f"{name}.md"]
    (snippet,) = re.findall(r"(?ms)^```yaml\n(.*?)^```$", page)
    path = tmp_path / "slurm_dl.yaml"
    path.write_text(f"manage: {{partitions: [gpu]}}\n{snippet}")
    path.chmod(0o640)

    assert load(path).policy.make() == POLICIES[name]()


def _row_of(name: str, table: str) -> str:
    return next(line for line in table.splitlines() if line.startswith(f"| [`{name}`]"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": 1.0, "b c": [True, None]}, '{a: 1, "b c": [true, null]}'),
        ("Null", '"Null"'),
        ("2", '"2"'),
        ("é\n", '"\\u00e9\\n"'),
        (Path("/a/b-c.d"), "/a/b-c.d"),
        (2.5, "2.5"),
    ],
)
def test_written_values_are_yaml(value: object, text: str) -> None:
    """Values are shown as YAML that reads back as the same value."""
    assert written(value) == text


SAMPLE_TEXT = reference.sample()
FULL = yaml.safe_dump(
    Config.model_validate({"manage": {"partitions": ["gpu"]}}).model_dump(mode="json")
)

KEYS = sorted({key for section in SECTIONS.values() for key in section.model_fields})
NUMBERS = st.integers() | st.floats() | st.integers(0, 100)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text() | st.sampled_from(["gpu", "fifo", "/a"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
NEAR_KEYS = st.sampled_from(KEYS) | st.text(max_size=8)
TREES = st.dictionaries(
    st.sampled_from(list(SECTIONS)) | st.text(max_size=8),
    st.dictionaries(NEAR_KEYS, VALUES, max_size=5) | VALUES,
    max_size=6,
)
SNIPPETS = st.sampled_from(
    [
        *":\n\t[]{}|>'\"#%~\0\x85\ufeff",
        *("- ", "&a ", "*a", "!!int ", "---\n", "...", "? ", "<<: "),
        *("\\U00110000", "0666", "1e999"),
    ]
)


@st.composite
def mangled(draw: st.DrawFn) -> str:
    """A valid file with a few pieces cut out or put in."""
    text = draw(st.sampled_from([SAMPLE_TEXT, FULL]))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        cut = draw(st.integers(0, 30))
        text = text[:at] + draw(SNIPPETS | st.text(max_size=5)) + text[at + cut :]
    return text


TEXTS = (
    mangled()
    | TREES.map(lambda tree: yaml.safe_dump(tree, allow_unicode=True))
    | TREES.map(lambda tree: yaml.safe_dump({"manage": {"partitions": ["gpu"]}, **tree}))
    | st.lists(SNIPPETS | st.text(max_size=4), max_size=20).map("".join)
)
FILES = st.binary(max_size=200) | TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass"))
KEY_VALUES = st.builds(
    "{}.{}={}".format, st.sampled_from(list(SECTIONS)) | st.text(max_size=4), NEAR_KEYS, VALUES
)


def in_file(content: bytes, check: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "f.yaml"
        path.write_bytes(content)
        check(path)


@given(content=FILES)
@example(content=b"")
@example(content=b"manage: {partitions: [gpu]}\ndaemon: {poll_s: 1e999}\n")
@settings(deadline=None, max_examples=50)
def test_any_file_gives_a_configuration_or_lines_that_name_it(content: bytes) -> None:
    """Whatever the file holds: a Config, or a ConfigError whose every line names the file."""

    def check(path: Path) -> None:
        try:
            config, origins = load_with_origins(path)
        except ConfigError as err:
            lines = str(err).split("\n")
            assert all(re.match(rf"{re.escape(str(path))}(:[1-9][0-9]*)?: \S", i) for i in lines)
            assert all(line.isprintable() for line in lines)
        else:
            assert isinstance(config, Config)
            assert len(list(show(config, origins))) > len(KEYS)

    in_file(content, check)


@given(overrides=st.lists(KEY_VALUES | st.text(), max_size=4))
@settings(deadline=None, max_examples=50)
def test_any_flag_gives_a_configuration_or_lines_that_name_it(overrides: list[str]) -> None:
    """Whatever the flags hold: a Config, or a ConfigError whose every line names a flag."""

    def check(path: Path) -> None:
        try:
            load(path, overrides=overrides)
        except ConfigError as err:
            lines = str(err).split("\n")
            # A key may come to be against one that a flag has made wrong; then it names the file.
            assert all(line.startswith(("--set ", f"{path}:")) for line in lines)
            assert any(line.startswith("--set ") for line in lines)
            assert all(line.isprintable() for line in lines)

    in_file(b"manage: {partitions: [gpu]}", check)


@given(tree=TREES)
@settings(deadline=None, max_examples=50)
def test_what_is_shown_loads_to_the_same(tree: dict[str, object]) -> None:
    """Every accepted configuration, printed value by value as flags, gives itself again."""

    def check(path: Path) -> None:
        try:
            config, origins = load_with_origins(path)
        except ConfigError:
            return
        flags = [f"{row.key}={row.text}" for row in show(config, origins)][1:]
        path.write_text("")
        assert load(path, overrides=flags) == config

    in_file(yaml.safe_dump({"manage": {"partitions": ["gpu"]}} | tree).encode(), check)

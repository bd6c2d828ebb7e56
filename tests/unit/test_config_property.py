from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm_dl.config import Config, load, show
from slurm_dl.config.loading import load_with_origins
from slurm_dl.config.tree import SECTIONS
from slurm_dl.model.errors import ConfigError
from tools.docs import reference

SAMPLE = reference.sample()
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
    text = draw(st.sampled_from([SAMPLE, FULL]))
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

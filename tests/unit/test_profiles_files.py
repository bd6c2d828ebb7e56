"""Profiles on disk: what is read, what is refused and why, and that writing loses nothing."""

from __future__ import annotations

import dataclasses
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.profile import (
    Beside,
    CheckpointCost,
    HostRate,
    Load,
    Profile,
    SharingMode,
    Speed,
)
from slurm_dl.model.shape import Shape
from slurm_dl.profiles import load_profiles, shipped_profiles, site_over
from slurm_dl.profiles.directory import (
    add_profile,
    path_of,
    plain,
    profile_of,
    read_profile,
    text_of,
    write_profile,
)
from slurm_dl.yaml_places import parse

EVERYTHING = """\
name: my/model-1.0
aliases: [My Model (batch size 8)]
source: measured in May
parameters: 1000
skew: 0.5
label: 1
batch: [1, 64]
load: {gpu_type: h200, gpu_util: 0.9, memory_util: 0.5, sm_active: 0.25, observations: 3,
  gpu_mem_mb: 9000, gpu_mem_kept_mb: 3000, network_mb_s: 10.5, pcie_mb_s: 0}
checkpoint: {size_mb: 12.5, save_s: 3, restore_s: 4.5, observations: 7}
beside:
- {other: resnet50, rate: 0.75, mode: mps, gpu_type: h200, observations: 4, origin: measured}
- {other: vgg16, rate: 0}
host:
- {cpus_per_gpu: 2, mem_mb_per_gpu: 4000, rate: 0.5}
- {cpus_per_gpu: 8, mem_mb_per_gpu: 4000, rate: 1}
speeds:
- {shape: 2x4, steps_per_s: 3, gpu_type: a100, batch: 32, observations: 2, spread: 0.01,
   origin: measured}
- {shape: 2x4, steps_per_s: 2.5}
hinted:
- {shape: 2x4, steps_per_s: 2.75, hints: byteps=65536}
shape_rates:
- {shape: 1x8, rate: 1.0, origin: published}
nccl: {NCCL_ALGO: Ring}
tensors_mb: [1.5, 0.75, 0.75]
"""


def read(text: str) -> Profile:
    """The profile in *text*, as of a file m.yaml."""
    return profile_of(parse(text, "m.yaml"), "m.yaml")


def mistakes(text: str) -> list[str]:
    """What is wrong with *text*."""
    with pytest.raises(ConfigError) as caught:
        read(text)
    return str(caught.value).splitlines()


def test_every_key_reaches_the_profile() -> None:
    """And what is not said stays unknown."""
    everything = read(EVERYTHING)
    assert plain(everything) == parse(EVERYTHING, "m").value
    assert everything.speeds[1] == Speed(shape=Shape(2, 4), steps_per_s=2.5)
    assert everything.load == Load(
        gpu_type="h200", gpu_util=0.9, memory_util=0.5, sm_active=0.25, observations=3,
        gpu_mem_mb=9000, gpu_mem_kept_mb=3000, network_mb_s=10.5, pcie_mb_s=0,
    )  # fmt: skip
    assert everything.beside[1] == Beside(other="vgg16", rate=0)
    assert {f.name for f in dataclasses.fields(Profile)} == plain(everything).keys()
    assert read("name: m") == Profile(name="m")
    assert read("name: m\ntensors_mb: [3, 1]").skew == 0.75


def test_speeds_beside_others_without_a_mode_are_of_slices() -> None:
    """The form of files that were written before there were modes, with its mistakes."""
    old, new = "{a: 0.5, b: 1}", "[{other: a, rate: 0.5}, {other: b, rate: 1, mode: slices}]"
    assert read(f"name: m\nbeside: {old}") == read(f"name: m\nbeside: {new}")
    (told,) = mistakes("name: m\nbeside:\n  a: 0.5\n  b: 7")
    assert told.startswith("m.yaml:4: beside.b: ")


@given(
    st.lists(
        st.builds(
            Beside,
            other=st.sampled_from(["a", "b"]),
            rate=st.sampled_from([0.5, 0.75]),
            mode=st.sampled_from(["slices", "mps"]),
            gpu_type=st.sampled_from(["", "a100", "h200"]),
        ),
        max_size=8, unique_by=lambda b: (b.other, b.mode, b.gpu_type),
    ),
    st.sampled_from(["slices", "mps"]), st.sampled_from(["", "a100", "k80"]),
)  # fmt: skip
def test_a_speed_counts_in_its_mode_and_on_its_type(
    beside: list[Beside], mode: SharingMode, gpu_type: str
) -> None:
    """The type's own comes before any type's; in another mode or on another type there is none."""
    table = {(b.other, b.mode, b.gpu_type): b.rate for b in beside}
    expected = table.get(("a", mode, gpu_type), table.get(("a", mode, "")))
    assert Profile(name="m", beside=tuple(beside)).speed_beside("a", mode, gpu_type) == expected


def test_the_example_in_the_documentation_is_a_profile() -> None:
    """And shows every key that there is."""
    page = (Path(__file__).parents[2] / "docs" / "operate" / "profiles.md").read_text("utf-8")
    example = page.partition("```yaml\n")[2].partition("```")[0]

    assert read(example).name == "mymodel"
    assert set(parse(example, "m").places) >= {(key,) for key in plain(read(EVERYTHING))}


ONE = "name: m\nspeeds:\n- {shape: 1x1, steps_per_s: 1}\n"


@pytest.mark.parametrize(
    ("text", "line", "key", "word"),
    [
        ("", 1, "", "mapping"),
        ("- a", 1, "", "mapping"),
        ("skew: 0.5", 1, "name", "required"),
        ("name: m\nhinted:\n- {shape: 1x1, steps_per_s: 1}", 2, "hinted", "without in speeds"),
        ("name: m\nskwe: 0.5", 2, "skwe", "unknown"),
        ("name: m\nskew: 2", 2, "skew", "at most 1 (got 2)"),
        ("name: m\nskew: .nan", 2, "skew", "finite"),
        ("name: m\nskew: '0.5'", 2, "skew", "number"),
        ("name: m\nname: n", 2, "name", "twice"),
        ("name: m\n1: n", 2, "", "key"),
        ("name: 1", 1, "name", "quotes"),
        ("name: -m", 1, "name", "letters"),
        ('name: "\\ud800"', 1, "", "character"),
        (f"{ONE}- {{shape: 4, steps_per_s: 1}}", 4, "speeds.1.shape", "text"),
        (f"{ONE}- {{shape: 1x0, steps_per_s: 1}}", 4, "speeds.1.shape", "2x4 (got '1x0')"),
        (f"{ONE}- {{shape: 1x2, steps_per_s: 0}}", 4, "speeds.1.steps_per_s", "than 0"),
        (f"{ONE}- {{shape: 1x2, steps_per_s: -1}}", 4, "speeds.1.steps_per_s", "than 0"),
        (f"{ONE}- {{shape: 1x1, steps_per_s: 2}}", 1, "", "twice"),
        ("name: m\nshape_rates:\n- {shape: 1x2, rate: 0}", 3, "shape_rates.0.rate", "than 0"),
        (
            "name: m\nshape_rates: [{shape: 1x1, rate: 1}, {shape: 1x1, rate: 1}]",
            *(1, "", "twice"),
        ),
        ("name: m\nskew: 0.9\ntensors_mb: [1, 1]", 1, "", "0.5"),
        ("name: m\nlabel: true", 2, "label", "whole"),
        ("name: m\nlabel: 7", 2, "label", "at most 2"),
        ("name: m\nbatch: [8]", 2, "batch.1", "required"),
        ("name: m\nbatch: [8, 9, 10]", 2, "batch", "at most 2"),
        ("name: m\nbatch: [8, 1]", 1, "", "batch"),
        ("name: m\nload:", 2, "load", "no value"),
        ("name: m\nload: [a]", 2, "load", "mapping"),
        ("name: m\nload: {gpu_mem_mb: 1, gpu_mem_kept_mb: 2}", 2, "load", "gpu_mem_kept_mb"),
        ("name: m\nnccl: {LD_PRELOAD: /tmp/x.so}", 2, "nccl.LD_PRELOAD", "NCCL"),
        (f"name: m\nsource: {'x' * 4001}", 2, "source", "4000"),
        ("name: &a m", 1, "", "anchors"),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, line: int, key: str, word: str) -> None:
    """One line each: file, line, key, what is wrong."""
    (found,) = mistakes(text)

    assert found.startswith(f"m.yaml:{line}: {key}: " if key else f"m.yaml:{line}: ")
    assert word in found


def test_all_mistakes_are_told_at_once_up_to_a_limit() -> None:
    """So that one round of mending is enough."""
    found = mistakes("name: m\nskew: 2\nlabel: 7\nload: {gpu_util: x}\nmore: 1")
    many = mistakes("name: m\n" + "".join(f"k{i}: 1\n" for i in range(60)))

    assert sorted(line.split(": ")[0] for line in found) == [f"m.yaml:{n}" for n in (2, 3, 4, 5)]
    assert len(many) == 51
    assert " 10 more" in many[-1]


def test_broken_yaml_and_control_characters_stay_on_one_line() -> None:
    """What a file says cannot steer the admin's terminal."""
    assert len(mistakes("name: [")) == 1
    (line,) = mistakes('name: "\\e[2J\\n"')
    assert line.isprintable()


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_what_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    """A profile decides where jobs go: users must not write it; it says what to do."""
    path = tmp_path / "m.yaml"
    path.write_text("name: m")
    path.chmod(mode)

    with pytest.raises(ConfigError, match=f"chmod go-w {path}"):
        load_profiles(tmp_path)
    path.chmod(0o644)
    assert set(load_profiles(tmp_path)) == {"m"}
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match=f"chmod go-w {tmp_path}"):
        load_profiles(tmp_path)


def test_another_owner_is_refused_by_the_daemon_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users read what the daemon's user owns; the daemon believes root and itself."""
    path = tmp_path / "m.yaml"
    path.write_text("name: m")
    owner = path.stat().st_uid
    if owner == 0:
        os.chown(path, 12345, -1)
        monkeypatch.setattr(os, "geteuid", lambda: 23456)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)

    with pytest.raises(ConfigError, match="must belong to root"):
        load_profiles(tmp_path)
    assert set(load_profiles(tmp_path, reader="user")) == {"m"}
    if owner == 0:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert set(load_profiles(tmp_path)) == {"m"}


def test_every_file_of_the_directory_is_told(tmp_path: Path) -> None:
    """Broken ones, and both that claim one name; other files do not matter."""
    (tmp_path / "a.yaml").write_text("name: a\naliases: [x]")
    (tmp_path / "b.yaml").write_text("name: x")
    (tmp_path / "c.yaml").write_text("broken: [")
    (tmp_path / ".d.yaml").write_text("broken: [")
    (tmp_path / "README").write_text("none")

    with pytest.raises(ConfigError) as caught:
        load_profiles(tmp_path)

    broken, clash = str(caught.value).splitlines()
    assert broken.startswith(f"{tmp_path}/c.yaml:1: ")
    assert clash.startswith(f"{tmp_path}/b.yaml: ")
    assert f"{tmp_path}/a.yaml" in clash
    with pytest.raises(ConfigError, match="gone"):
        load_profiles(tmp_path / "gone")


def test_adding_is_whole_or_not_at_all(tmp_path: Path) -> None:
    """Mode 0644 whatever the umask; a clash leaves everything as it was."""
    before = os.umask(0o077)
    try:
        path, replaced = add_profile(tmp_path, Profile(name="a/b", aliases=("x",)))
    finally:
        os.umask(before)
    assert (path, replaced) == (tmp_path / "a_b.yaml", False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    text = path.read_text()

    with pytest.raises(ConfigError, match="name x"):
        add_profile(tmp_path, Profile(name="x"))
    with pytest.raises(ConfigError, match="has another profile"):
        add_profile(tmp_path, Profile(name="a_b"))
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a_b.yaml": text}

    assert add_profile(tmp_path, Profile(name="a/b", skew=0.5)) == (path, True)
    assert load_profiles(tmp_path)["a/b"].skew == 0.5


def test_what_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    """The old file stays."""
    path = path_of(tmp_path, "m")
    write_profile(path, Profile(name="m"))
    with pytest.raises(ConfigError, match="skew"):
        write_profile(path, Profile(name="m", skew=7.0))
    assert read_profile(path, reader=None) == Profile(name="m")
    assert [p.name for p in tmp_path.iterdir()] == ["m.yaml"]


def test_the_site_s_profile_takes_all_names_of_the_shipped_one(tmp_path: Path) -> None:
    """A job that names an alias must not get the figures that the site has replaced."""
    (tmp_path / "r.yaml").write_text("name: resnet50\nskew: 0.5\naliases: [rn50]")
    merged = site_over(shipped_profiles(), load_profiles(tmp_path))

    for name in ("resnet50", "ResNet-50 (batch size 64)", "rn50"):
        assert merged[name].skew == 0.5
    assert merged["vgg16"] is not None


SHARES, POSITIVE = st.floats(0, 1), st.floats(0, 1e12, exclude_min=True)
AMOUNTS, COUNTS = st.none() | st.floats(0, 1e12), st.integers(1, 10**9)
SPEEDS = st.lists(
    st.builds(
        Speed,
        steps_per_s=POSITIVE,
        shape=st.builds(Shape, st.integers(1, 99), st.integers(1, 16)),
        gpu_type=st.sampled_from(["", "a100", "1e5", "on", "0x1"]),
        spread=AMOUNTS,
        batch=st.none() | COUNTS,
    ),
    max_size=4,
    unique_by=lambda s: (s.shape, s.gpu_type),
)


@given(
    st.builds(
        Profile,
        name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._+/-]{0,10}", fullmatch=True),
        aliases=st.lists(st.from_regex(r"[A-Za-z0-9][ -~]{0,10}", fullmatch=True)).map(tuple),
        source=st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=200),
        skew=st.none() | st.floats(0, 1, exclude_min=True),
        parameters=st.none() | st.integers(1, 10**15),
        load=st.builds(Load, gpu_util=st.none() | SHARES, gpu_mem_mb=AMOUNTS, pcie_mb_s=AMOUNTS),
        label=st.none() | st.integers(0, 2),
        beside=st.lists(
            st.builds(
                Beside,
                other=st.sampled_from(["on", "1e3", "m"]),
                rate=st.floats(0, 1),
                mode=st.sampled_from(["slices", "mps"]),
                gpu_type=st.sampled_from(["", "1e5"]),
            ),
            unique_by=lambda b: (b.other, b.mode, b.gpu_type),
        ).map(tuple),
        host=st.lists(
            st.builds(HostRate, cpus_per_gpu=POSITIVE, mem_mb_per_gpu=SHARES, rate=SHARES)
        ).map(tuple),
        checkpoint=st.builds(
            CheckpointCost, size_mb=st.none() | POSITIVE, save_s=AMOUNTS, observations=COUNTS
        ),
        speeds=SPEEDS.map(tuple),
        batch=st.none() | st.just((1, 8)),
        nccl=st.dictionaries(st.just("NCCL_ALGO"), st.sampled_from(["Ring", "1", "on", ""])),
    )
)
def test_what_is_written_is_read_back(profile: Profile) -> None:
    """Names that look like numbers and figures with exponents included."""
    assert read(text_of(profile)) == profile


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda b: b.decode("latin-1")))
def test_any_text_is_a_profile_or_a_clear_error(text: str) -> None:
    """Nothing else comes out, and every line of the error is printable."""
    lines: list[str] = []
    try:
        profile = read(text)
    except ConfigError as err:
        lines = str(err).splitlines()
    else:
        assert profile.name
    assert all(line.isprintable() for line in lines)

"""What an admin says of preemption and packing, and what the engine gets of it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from slurm_dl.config import load
from slurm_dl.config.engine_settings import settings_of, with_sure_saves
from slurm_dl.config.tree import SITE_FACTOR_END
from slurm_dl.engine.settings import External, Native
from slurm_dl.model.errors import ConfigError
from slurm_dl.slurm.write.actions import _MOST_SITE_FACTOR

HEAD = "manage: {partitions: [gpu]}\n"


def write(directory: Path, text: str) -> Path:
    """A configuration file."""
    path = directory / "dl.yaml"
    path.write_text(HEAD + text, "utf-8")
    return path


def test_the_default_is_external(tmp_path: Path) -> None:
    """Nothing changes for a site that says nothing."""
    config = load(write(tmp_path, ""))

    assert settings_of(config).mode == External()
    assert config.preemption.in_words() == "by dlschedd"


def test_native_names_its_qos_as_slurm_does(tmp_path: Path) -> None:
    """Slurm writes QOS in small letters."""
    config = load(write(tmp_path, "preemption: {mode: native, qos: DL, enabled: false}\n"))

    assert settings_of(config).mode == Native("dl")
    assert settings_of(config).preemption.enabled is False
    assert "no waiting job may exceed a running one" in config.preemption.in_words()


@pytest.mark.parametrize(("mode", "delay_s"), [("external", 120), ("native", 0)])
def test_the_delay_of_beneficiaries_is_for_the_external_mode(
    tmp_path: Path, mode: str, delay_s: float
) -> None:
    """A simulation of the site keeps it, and takes every save to succeed."""
    text = f"preemption: {{mode: {mode}, qos: DL, beneficiary_delay_s: 120}}\n"
    limits = settings_of(load(write(tmp_path, text))).preemption
    simulated = with_sure_saves(settings_of(load(write(tmp_path, text)))).preemption

    assert (limits.beneficiary_delay_s, limits.unsaved_share) == (delay_s, 0.5)
    assert (simulated.beneficiary_delay_s, simulated.unsaved_share) == (delay_s, 0)


def test_native_without_a_qos_is_refused_at_its_line(tmp_path: Path) -> None:
    """Slurm preempts inside one, or not at all."""
    with pytest.raises(ConfigError, match=r"dl.yaml:3: preemption.qos: must name the QOS"):
        load(write(tmp_path, "preemption:\n  mode: native\n"))


@pytest.mark.parametrize("qos", ["a|b", "x y", "-q", "a,b"])
def test_what_is_no_name_is_refused(tmp_path: Path, qos: str) -> None:
    """It goes into commands and is compared with Slurm's words."""
    with pytest.raises(ConfigError, match=r"preemption\.qos: .*letters"):
        load(write(tmp_path, f'preemption: {{qos: "{qos}"}}\n'))


@pytest.mark.parametrize(("mode", "fits"), [("external", True), ("native", False)])
def test_half_a_band_more_must_fit_as_well(tmp_path: Path, mode: str, *, fits: bool) -> None:
    """71 tiers of 30.1 million fit into Slurm's number, with half a one more they do not."""
    path = write(
        tmp_path,
        f"policy: {{parameters: {{thresholds_gpu_s: {list(range(1, 71))}}}}}\n"
        f"ranking: {{band_width: 30100000}}\npreemption: {{mode: {mode}, qos: dl}}\n",
    )

    if fits:
        assert load(path).preemption.mode == mode
    else:
        with pytest.raises(ConfigError, match="must stay below 2147483646"):
            load(path)


def test_what_is_accepted_can_be_written() -> None:
    """No band passes the checks of the configuration and is then refused job by job."""
    assert SITE_FACTOR_END - 1 == _MOST_SITE_FACTOR


def write_placement(tmp_path: Path, placement: str) -> Path:
    """A configuration file with this section."""
    path = tmp_path / "dl.yaml"
    path.write_text(f"manage: {{partitions: [gpu]}}\nplacement: {placement}\n", encoding="utf-8")
    path.chmod(0o640)
    return path


def test_packing_is_off_by_default(tmp_path: Path) -> None:
    """A scheme that steers packs nobody."""
    how = settings_of(load(write_placement(tmp_path, "{scheme: best_fit, steer: true}"))).placement

    assert (how.pack, dict(how.gpu_mem_mb), how.max_host_slowdown) == (False, {}, None)


def test_what_is_said_reaches_the_engine(tmp_path: Path) -> None:
    """Memory by type; a bound of 1 is none."""
    text = "{scheme: best_fit, steer: true, pack: true, gpu_mem_mb: {a100: 40960, t4: 1.5e4}"
    text += ", sharing_mode: mps, least_pair_speed: 1.5, profile_slots: 0"
    config = load(write_placement(tmp_path, text + ", max_host_slowdown: 0.03}"))
    how = settings_of(config).placement

    assert how.pack
    assert how.gpu_mem_mb == {"a100": 40_960.0, "t4": 15_000.0}
    assert how.max_host_slowdown == 0.03
    assert (how.sharing_mode, how.least_pair_speed, how.profile_slots) == ("mps", 1.5, 0)
    assert copy.deepcopy(config) == config
    one = load(write_placement(tmp_path, text + ", max_host_slowdown: 1}"))
    assert settings_of(one).placement.max_host_slowdown is None


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        ("{scheme: best_fit, pack: true}", "placement.pack: has no effect"),
        ("{gpu_mem_mb: {a100: 0}}", "placement.gpu_mem_mb.a100: must be greater than 0"),
        ("{gpu_mem_mb: {a100: big}}", "placement.gpu_mem_mb.a100"),
        ("{max_host_slowdown: 1.5}", "placement.max_host_slowdown"),
        ("{sharing_mode: turns}", "placement.sharing_mode"),
        ("{least_pair_speed: 0.99}", "placement.least_pair_speed"),
        ("{least_pair_speed: 2.01}", "placement.least_pair_speed"),
        ("{profile_slots: 1.5}", "placement.profile_slots"),
        ("{profile_slots: -1}", "placement.profile_slots"),
    ],
)
def test_what_cannot_be(tmp_path: Path, placement: str, said: str) -> None:
    """One line for each mistake, with its place."""
    with pytest.raises(ConfigError) as err:
        load(write_placement(tmp_path, placement))

    assert said in str(err.value)

"""What an admin says of packing, and what the engine gets of it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from slurm_dl.config.engine_settings import settings_of
from slurm_dl.config.loading import load
from slurm_dl.model.errors import ConfigError


def write(tmp_path: Path, placement: str) -> Path:
    """A configuration file with this section."""
    path = tmp_path / "dl.yaml"
    path.write_text(f"manage: {{partitions: [gpu]}}\nplacement: {placement}\n", encoding="utf-8")
    path.chmod(0o640)
    return path


def test_packing_is_off_by_default(tmp_path: Path) -> None:
    """A scheme that steers packs nobody."""
    how = settings_of(load(write(tmp_path, "{scheme: best_fit, steer: true}"))).placement

    assert (how.pack, dict(how.gpu_mem_mb), how.max_host_slowdown) == (False, {}, None)


def test_what_is_said_reaches_the_engine(tmp_path: Path) -> None:
    """Memory by type; a bound of 1 is none."""
    text = "{scheme: best_fit, steer: true, pack: true, gpu_mem_mb: {a100: 40960, t4: 1.5e4}"
    config = load(write(tmp_path, text + ", max_host_slowdown: 0.03}"))
    how = settings_of(config).placement

    assert how.pack
    assert how.gpu_mem_mb == {"a100": 40_960.0, "t4": 15_000.0}
    assert how.max_host_slowdown == 0.03
    assert copy.deepcopy(config) == config
    one = load(write(tmp_path, text + ", max_host_slowdown: 1}"))
    assert settings_of(one).placement.max_host_slowdown is None


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        ("{scheme: best_fit, pack: true}", "placement.pack: has no effect"),
        ("{gpu_mem_mb: {a100: 0}}", "placement.gpu_mem_mb.a100: must be greater than 0"),
        ("{gpu_mem_mb: {a100: big}}", "placement.gpu_mem_mb.a100"),
        ("{max_host_slowdown: 1.5}", "placement.max_host_slowdown"),
    ],
)
def test_what_cannot_be(tmp_path: Path, placement: str, said: str) -> None:
    """One line for each mistake, with its place."""
    with pytest.raises(ConfigError) as err:
        load(write(tmp_path, placement))

    assert said in str(err.value)

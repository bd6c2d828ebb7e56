"""The section ``estimates`` of the configuration."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from slurm_dl.config import Config, load
from slurm_dl.config.estimates_section import EstimatesSection
from slurm_dl.daemon.assembly import knowledge_of
from slurm_dl.daemon.history_cache import HistoryCache
from slurm_dl.estimates.training_speed import SitePriors
from slurm_dl.model.errors import ConfigError


def written(path: Path, estimates: str) -> Path:
    """A configuration with that section."""
    path.write_text(f"manage: {{partitions: [gpu]}}\nestimates: {estimates}\n", encoding="utf-8")
    path.chmod(0o600)
    return path


def test_it_is_read(tmp_path: Path) -> None:
    """Every key; the table by GPU type in the order of the file."""
    text = "{history_days: 30, refresh_s: 600, gpu_speed: {v100: 1, a100: 2.5}, serial_share: 0.2}"
    section = load(written(tmp_path / "c.yaml", text)).estimates

    assert (section.history_days, section.refresh_s, section.serial_share) == (30, 600.0, 0.2)
    assert dict(section.gpu_speed) == {"v100": 1.0, "a100": 2.5}


def test_by_default_nobody_is_asked_and_types_are_alike() -> None:
    """Its serial share is that of the model of speeds."""
    section = EstimatesSection()

    assert section.history_days == 0
    assert dict(section.gpu_speed) == {}
    assert section.serial_share == SitePriors().serial_share


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{gpu_speed: {a100: 0}}", "estimates.gpu_speed.a100"),
        ("{gpu_speed: {a100: -1}}", "estimates.gpu_speed.a100"),
        ("{gpu_speed: {a100: .nan}}", "estimates.gpu_speed.a100"),
        ("{gpu_speed: {a100: .inf}}", "estimates.gpu_speed.a100"),
        ("{gpu_speed: {a100: fast}}", "estimates.gpu_speed.a100"),
        ("{history_days: -1}", "estimates.history_days"),
        ("{history_days: 1.5}", "estimates.history_days"),
        ("{refresh_s: 5}", "estimates.refresh_s"),
        ("{serial_share: 1.5}", "estimates.serial_share"),
        ("{history: 1}", "estimates.history"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, text: str, where: str) -> None:
    """With the key it is about."""
    with pytest.raises(ConfigError, match=where.replace(".", r"\.")):
        load(written(tmp_path / "c.yaml", text))


def test_days_of_history_make_a_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read as often as is said; nothing is read yet."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for tool in ("squeue", "sinfo", "scontrol", "scancel", "sprio", "sacct"):
        (tmp_path / tool).write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
        (tmp_path / tool).chmod(0o755)
    config = Config.model_validate(
        {
            "manage": {"partitions": ["gpu"]},
            "cluster": {"bin_dir": str(tmp_path)},
            "estimates": {"history_days": 30, "refresh_s": 600},
        }
    )
    history = knowledge_of(config)._history

    assert isinstance(history, HistoryCache)
    assert history._every_s == 600
    assert math.isinf(history._next_s)

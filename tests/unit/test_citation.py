"""CITATION.cff says what the package says of itself."""

from __future__ import annotations

import tomllib
from pathlib import Path

import yaml

from slurm_dl import __version__

ROOT = Path(__file__).parents[2]


def test_the_citation_agrees_with_the_package() -> None:
    told = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    assert told["version"] == __version__
    assert (told["license"], told["keywords"]) == (project["license"], project["keywords"])
    assert {"cff-version", "message", "title", "authors"} <= set(told)

"""The colours of bars on the page can be told apart, also by colour-blind readers."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from slurm_dl.report import html

THEME = Path(html.__file__).parents[1] / "page" / "theme.js"

VISION = {
    "of all three": np.eye(3),
    "protanopia": np.array([
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ]),
    "deuteranopia": np.array([
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]),
    "tritanopia": np.array([
        [1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ]),
}  # fmt: skip
"""What is seen of linear RGB: Machado, Oliveira, Fernandes, IEEE TVCG 15(6), 2009, severity 1."""

LEAST = 15.0
"""CIE76; 2.3 is just noticeable, between areas that touch."""


def lab(colour: str, seen: np.ndarray) -> np.ndarray:
    """CIELAB (D65) of a colour as such an eye sees it."""
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    ) @ np.clip(seen @ linear, 0, 1)
    ratio = xyz / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eye", VISION)
@pytest.mark.parametrize("kind", ["light", "dark"])
def test_any_two_colours_are_told_apart(eye: str, kind: str) -> None:
    """Of users among themselves, from the grey of the others, and from the ground."""
    others = re.search(rf'OTHERS = .*{kind}: "(#\w+)"', THEME.read_text(encoding="utf-8"))
    css = (THEME.parent / "page.css").read_text(encoding="utf-8")
    grounds = re.findall(r"--ground: (#\w+)", css)
    ground = grounds[0] if kind == "light" else grounds[1]
    ground = ground if len(ground) == 7 else f"#{ground[1:] * 2}"
    bars = re.search(r"BARS = \[(.*?)\]", THEME.read_text(encoding="utf-8"))
    tints = re.findall(r"#\w{6}", bars[1])
    seen = [lab(colour, VISION[eye]) for colour in (*tints, others[1], ground)]

    distances = [np.linalg.norm(a - b) for a, b in itertools.combinations(seen[:-2], 2)]
    distances += [np.linalg.norm(a - b) for a, b in itertools.product(seen[:-2], seen[-2:])]
    assert min(distances) > LEAST

"""Compute the profiles that come with slurm_dl: ``python profiles/build.py [DIR]``.

Tensors come from `architectures`, speeds from ``published``. The files in ``models`` are what this
writes, byte for byte; a test holds them to it.
"""

# ruff: noqa: INP001 - a script beside its data, no package

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from architectures import ARCHITECTURES

from slurm_dl.model.profile import Beside, Profile, Shape, ShapeRate, Speed, skew_of
from slurm_dl.profiles.directory import path_of, write_profile

HERE = Path(__file__).parent
COMMENT = "Computed by profiles/build.py; a site's own profile of this name counts before it."
ELEMENTS_PER_MB = 2**20 / 4
"""float32"""

DIGITS = 6


def _batches(name: str, *sizes: int) -> tuple[str, ...]:
    return (name, *(f"{name} (batch size {size})" for size in sizes))


ALIASES: dict[str, tuple[str, ...]] = {
    "alexnet": ("AlexNet",),
    "vgg11": ("VGG11", "VGG-11"),
    "vgg13": ("VGG13", "VGG-13"),
    "vgg16": ("VGG16", "VGG-16"),
    "vgg19": ("VGG19", "VGG-19"),
    "resnet18": ("resnet-18", "cifar10", *_batches("ResNet-18", 16, 32, 64, 128, 256)),
    "resnet34": ("resnet-34", "ResNet-34"),
    "resnet50": ("resnet-50", "imagenet", *_batches("ResNet-50", 16, 32, 64, 128)),
    "resnet101": ("resnet-101", "ResNet-101"),
    "resnet152": ("resnet-152", "ResNet-152"),
    "googlenet": ("GoogLeNet",),
    "inception3": ("inception_v3", "inception-v3", "Inception-3"),
    "inception4": ("inception_v4", "inception-v4", "Inception-4"),
    "mobilenet_v2": ("mobilenet-v2", "MobileNet-v2"),
    "shufflenet_v2": ("shufflenet_v2_x1_0",),
    "bert-base": ("bert", "bert-base-uncased", "BERT"),
    "bert-large": ("bert-large-uncased",),
    "gpt2": ("gpt2-small", "GPT-2"),
    "lstm": _batches("LM", 5, 10, 20, 40, 80),
    "transformer": _batches("Transformer", 16, 32, 64, 128, 256),
    "recommendation": _batches("Recommendation", 512, 1024, 2048, 4096, 8192),
    "a3c": ("A3C",),
    "cyclegan": ("CycleGAN",),
    "deepspeech2": ("DeepSpeech2",),
    "ncf": ("NeuMF",),
}
"""Names that traces and users have for them."""

REMARKS = {
    "resnet18": "Speeds are of training on CIFAR-10, tensors of the ImageNet form.",
    "transformer": "Speeds are of training on Multi30k, whose vocabulary is smaller.",
}


def rounded(value: float) -> float:
    """*value* with as many digits as a profile has."""
    return float(f"{value:.{DIGITS}g}")


def profiles() -> list[Profile]:
    """All of them, by name."""
    published = {
        name: json.loads((HERE / "published" / f"{name}.json").read_text())
        for name in ("gavel", "chronus", "pollux")
    }
    names = {*ARCHITECTURES, *ALIASES}
    return [_profile(name, published) for name in sorted(names)]


def _profile(name: str, published: dict[str, dict[str, Any]]) -> Profile:
    sources: list[str] = []
    tensors: tuple[float, ...] = ()
    parameters = None
    if name in ARCHITECTURES:
        count, source = ARCHITECTURES[name]
        sizes = count()
        parameters = sum(sizes)
        tensors = tuple(rounded(size / ELEMENTS_PER_MB) for size in sizes)
        sources.append(f"Tensors: {source}.")
    speeds: list[Speed] = []
    for table, words in (
        ("gavel", "one node for consolidated, one GPU on each node for unconsolidated"),
        ("pollux", "4-GPU nodes of T4"),
    ):
        rows = [row for row in published[table]["speeds"] if row["model"] == name]
        speeds += [
            Speed(
                shape=Shape.of(row["shape"]),
                steps_per_s=rounded(row["steps_per_s"]),
                gpu_type=row["gpu_type"],
                batch=row["batch"],
                origin="published",
            )
            for row in rows
        ]
        if rows:
            sources.append(f"Speeds: {_origin(published[table])}; {words}.")
    gavel, chronus = published["gavel"], published["chronus"]
    if name in gavel["beside"]:
        sources.append(f"Beside others: the same, on one {gavel['beside_on']}; 0: does not fit.")
    rates = tuple(
        ShapeRate(shape=Shape.of(row["shape"]), rate=rounded(row["rate"]), origin="published")
        for row in chronus["rates"]
        if row["model"] == name
    )
    if rates:
        sources.append(f"Relative speeds: {_origin(chronus)}.")
    if name in REMARKS:
        sources.append(REMARKS[name])
    return Profile(
        name=name,
        aliases=ALIASES.get(name, ()),
        source=" ".join(sources),
        parameters=parameters,
        skew=rounded(skew_of(tensors)) if tensors else None,
        tensors_mb=tensors,
        speeds=tuple(sorted(speeds, key=lambda s: (s.gpu_type, s.shape.gpus, s.shape.nodes))),
        shape_rates=tuple(sorted(rates, key=lambda r: (r.shape.gpus, r.shape.nodes))),
        beside=tuple(
            Beside(
                other=other,
                rate=rounded(rate),
                gpu_type=gavel["beside_on"],
                origin="published",
            )
            for other, rate in gavel["beside"].get(name, {}).items()
        ),
    )


def _origin(table: dict[str, Any]) -> str:
    return f"{table['origin']}, {table['licence']}"


def main() -> None:
    """Write every file anew."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "models"
    directory.mkdir(exist_ok=True)
    for profile in profiles():
        write_profile(path_of(directory, profile.name), profile, comment=COMMENT)


if __name__ == "__main__":
    main()

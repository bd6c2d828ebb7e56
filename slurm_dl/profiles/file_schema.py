"""What may stand in a profile's file: each key with its bounds, and the profile it makes."""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.profile import (
    CheckpointCost,
    HostRate,
    Label,
    Load,
    Profile,
    Shape,
    ShapeRate,
    Speed,
    skew_of,
)
from slurm_dl.text import escaped, shown
from slurm_dl.yaml_places import Document, Problem, SourcePlace, dotted

NAME = r"[A-Za-z0-9][A-Za-z0-9._+/-]{0,63}"
"""A model's name as a job may give it."""

_SHAPE = r"([1-9][0-9]{0,4})x([1-9][0-9]{0,3})"
_SKEW_TOLERANCE = 0.01
_MOST_MISTAKES = 50

_LABELS: tuple[Label, ...] = (0, 1, 2)

_WORDS = {
    "missing": "is required",
    "extra_forbidden": "unknown key",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "string_type": "must be text; put it in quotes",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "finite_number": "must be a finite number",
    "too_short": "has too few entries",
    "too_long": "has too many entries",
}
"""By pydantic's name of the mistake; the others keep its own words."""


def _matching(pattern: str, words: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(words)
        return text

    return AfterValidator(check)


_Name = Annotated[str, _matching(NAME, "must be letters, digits and . _ + / -, 64 at most")]
_Alias = Annotated[str, _matching(r"[A-Za-z0-9][ -~]{0,63}", "must be 1 to 64 ASCII characters")]
_GpuType = Annotated[
    str, _matching(r"[A-Za-z0-9._+-]{0,64}", "must be letters, digits and . _ + -")
]
_ShapeText = Annotated[str, _matching(_SHAPE, "must be NODESxGPUS, such as 2x4")]
_NcclName = Annotated[str, _matching(r"NCCL_[A-Z0-9_]{1,60}", "must be a variable of NCCL")]
_NcclValue = Annotated[str, _matching(r"[ -~]{0,200}", "must be at most 200 ASCII characters")]
_Positive = Annotated[float, Field(gt=0, le=1e12)]
_NotNegative = Annotated[float, Field(ge=0, le=1e12)]
_Frac = Annotated[float, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=0, le=10**9)]
_Batch = Annotated[int, Field(ge=1, le=10**9)]
_Origin = Literal["measured", "computed", "published", "declared"]


class _Entry(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True
    )


class _Load(_Entry):
    gpu_util: _Frac | None = None
    gpu_mem_mb: _NotNegative | None = None
    gpu_mem_kept_mb: _NotNegative | None = None
    network_mb_s: _NotNegative | None = None
    pcie_mb_s: _NotNegative | None = None

    @model_validator(mode="after")
    def _kept_is_part_of_all(self) -> _Load:
        most, kept = self.gpu_mem_mb, self.gpu_mem_kept_mb
        if most is not None and kept is not None and kept > most:
            msg = "gpu_mem_kept_mb cannot be more than gpu_mem_mb"
            raise ValueError(msg)
        return self


class _Host(_Entry):
    cpus_per_gpu: _Positive
    mem_mb_per_gpu: _NotNegative
    rate: _Frac


class _Checkpoint(_Entry):
    size_mb: _Positive | None = None
    save_s: _NotNegative | None = None
    restore_s: _NotNegative | None = None
    observations: _Count = 0


class _Speed(_Entry):
    shape: _ShapeText
    steps_per_s: _Positive
    gpu_type: _GpuType = ""
    batch: _Batch | None = None
    observations: _Count = 0
    spread: _NotNegative | None = None
    origin: _Origin = "declared"


class _ShapeRate(_Entry):
    shape: _ShapeText
    rate: Annotated[float, Field(gt=0, le=10)]
    origin: _Origin = "declared"


class _Profile(_Entry):
    name: _Name
    aliases: list[_Alias] = Field(default=[], max_length=100)
    source: str = Field(default="", max_length=4000)
    parameters: Annotated[int, Field(ge=1, le=10**15)] | None = None
    skew: Annotated[float, Field(gt=0, le=1)] | None = None
    tensors_mb: list[_Positive] = Field(default=[], max_length=20_000)
    load: _Load = _Load()
    label: Annotated[int, Field(ge=0, le=2)] | None = None
    beside: dict[_Name, Annotated[float, Field(ge=0, le=2)]] = Field(default={}, max_length=1000)
    host: list[_Host] = Field(default=[], max_length=1000)
    checkpoint: _Checkpoint = _Checkpoint()
    speeds: list[_Speed] = Field(default=[], max_length=2000)
    shape_rates: list[_ShapeRate] = Field(default=[], max_length=2000)
    batch: Annotated[list[_Batch], Field(min_length=2, max_length=2)] | None = None
    nccl: dict[_NcclName, _NcclValue] = Field(default={}, max_length=100)

    @model_validator(mode="after")
    def _nothing_contradicts(self) -> _Profile:
        wrong = ""
        if self.batch is not None and self.batch[0] > self.batch[1]:
            wrong = "batch must be [least, most]"
        if self.skew is not None and self.tensors_mb:
            computed = skew_of(tuple(self.tensors_mb))
            if not math.isclose(self.skew, computed, rel_tol=_SKEW_TOLERANCE):
                wrong = f"skew is {self.skew:.4g}, but that of tensors_mb is {computed:.4g}"
        if _has_twice([(s.shape, s.gpu_type) for s in self.speeds]):
            wrong = "speeds has one shape twice for the same gpu_type"
        if _has_twice([(r.shape, "") for r in self.shape_rates]):
            wrong = "shape_rates has one shape twice"
        if wrong:
            raise ValueError(wrong)
        return self


def _has_twice(keys: list[tuple[str, str]]) -> bool:
    return len(set(keys)) < len(keys)


def profile_of(document: Document, name: str) -> Profile:
    """The profile in *document*, which stands in the file *name*.

    Raises:
        ConfigError: One line for each mistake, with its place.
    """
    mistakes = [str(problem) for problem in document.problems]
    if not mistakes and not isinstance(document.value, dict):
        text = "must be a mapping with a name, such as 'name: resnet50'"
        mistakes = [str(Problem(SourcePlace(1, name), "", text))]
    if not mistakes:
        try:
            return _built(_Profile.model_validate(document.value))
        except ValidationError as err:
            found = err.errors(include_url=False)
            # A value that fits neither of two types is one mistake.
            mistakes = list(dict.fromkeys(_mistake(dict(one), document, name) for one in found))
    more = len(mistakes) - _MOST_MISTAKES
    shown_mistakes = mistakes[:_MOST_MISTAKES]
    if more > 0:
        shown_mistakes.append(f"{escaped(name)}: and {more} more mistakes")
    raise ConfigError("\n".join(shown_mistakes))


def _mistake(error: dict[str, object], document: Document, name: str) -> str:
    loc = error["loc"]
    path = tuple(part for part in loc if part != "[key]") if isinstance(loc, tuple) else ()
    above = (path[:end] for end in range(len(path), -1, -1))
    place = next((document.places[at] for at in above if at in document.places), None)
    kind, given = str(error["type"]), error.get("input")
    text = _WORDS.get(kind) or str(error["msg"]).removeprefix("Value error, ")
    text = text.replace("Input should", "must")
    # A contradiction within a mapping is in the text itself.
    told = kind in {"missing", "extra_forbidden"} or (kind, type(given)) == ("value_error", dict)
    got = "" if told or not path else f" (got {shown(given)})"
    return str(Problem(place or SourcePlace(1, name), dotted(path), text + got))


def shape_of(text: str) -> Shape:
    """The shape written ``NODESxGPUS``.

    Raises:
        ValueError: It is written otherwise.
    """
    found = re.fullmatch(_SHAPE, text)
    if found is None:
        msg = f"{text!r} is no shape such as 2x4"
        raise ValueError(msg)
    return Shape(int(found[1]), int(found[2]))


def _built(given: _Profile) -> Profile:
    tensors = tuple(given.tensors_mb)
    return Profile(
        name=given.name,
        aliases=tuple(given.aliases),
        tensors_mb=tensors,
        skew=given.skew if given.skew is not None or not tensors else skew_of(tensors),
        parameters=given.parameters,
        load=Load(**given.load.model_dump()),
        label=None if given.label is None else _LABELS[given.label],
        beside=dict(given.beside),
        host=tuple(HostRate(**h.model_dump()) for h in given.host),
        checkpoint=CheckpointCost(**given.checkpoint.model_dump()),
        speeds=tuple(Speed(**{**s.model_dump(), "shape": shape_of(s.shape)}) for s in given.speeds),
        shape_rates=tuple(
            ShapeRate(**{**r.model_dump(), "shape": shape_of(r.shape)}) for r in given.shape_rates
        ),
        batch=None if given.batch is None else (given.batch[0], given.batch[1]),
        nccl=dict(given.nccl),
        source=given.source,
    )

"""A profile as its file says it: read with the bounds of `slurm_dl.model.profile`, and written."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace

from pydantic import ConfigDict, TypeAdapter, ValidationError

from slurm_dl.error_text import sentence
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.profile import Profile, skew_of
from slurm_dl.text import escaped
from slurm_dl.yaml_places import Document, Loc, Problem, SourcePlace, dotted

_MOST_MISTAKES = 50
_SKEW_TOLERANCE = 0.01

# pydantic takes no settings for a dataclass itself.
_FILE = TypeAdapter(
    tuple[Profile], config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
)


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
            # Of Python's own values a strict dataclass would have to be one already.
            (profile,) = _FILE.validate_json(json.dumps([document.value]))
        except ValidationError as err:
            found = err.errors(include_url=False)
            mistakes = [_mistake(one["loc"][1:], sentence(one), document, name) for one in found]
        else:
            mistakes = [_mistake(*one, document, name) for one in _contradictions(profile)]
        if not mistakes:
            if profile.skew is None and profile.tensors_mb:
                return replace(profile, skew=skew_of(profile.tensors_mb))
            return profile
    more = len(mistakes) - _MOST_MISTAKES
    shown_mistakes = mistakes[:_MOST_MISTAKES]
    if more > 0:
        shown_mistakes.append(f"{escaped(name)}: and {more} more mistakes")
    raise ConfigError("\n".join(shown_mistakes))


def plain(profile: Profile) -> dict[str, object]:
    """What is known of *profile*, in the order people read it, as YAML and JSON can say it."""
    known: dict[str, object]
    (known,) = _FILE.dump_python((profile,), mode="json", exclude_defaults=True)
    return known


def _contradictions(profile: Profile) -> Iterator[tuple[Loc, str]]:
    most, kept = profile.load.gpu_mem_mb, profile.load.gpu_mem_kept_mb
    if most is not None and kept is not None and kept > most:
        yield ("load",), "gpu_mem_kept_mb cannot be more than gpu_mem_mb"
    if profile.batch is not None and profile.batch[0] > profile.batch[1]:
        yield (), "batch must be [least, most]"
    if profile.skew is not None and profile.tensors_mb:
        computed = skew_of(profile.tensors_mb)
        if not math.isclose(profile.skew, computed, rel_tol=_SKEW_TOLERANCE):
            yield (), f"skew is {profile.skew:.4g}, but that of tensors_mb is {computed:.4g}"
    if len({(s.shape, s.gpu_type) for s in profile.speeds}) < len(profile.speeds):
        yield (), "speeds has one shape twice for the same gpu_type"
    if len({r.shape for r in profile.shape_rates}) < len(profile.shape_rates):
        yield (), "shape_rates has one shape twice"


def _mistake(loc: Loc, text: str, document: Document, name: str) -> str:
    path = tuple(part for part in loc if part != "[key]")
    above = (path[:end] for end in range(len(path), -1, -1))
    place = next((document.places[at] for at in above if at in document.places), None)
    return str(Problem(place or SourcePlace(1, name), dotted(path), text))

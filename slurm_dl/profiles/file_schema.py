"""A profile as its file says it: read with the bounds of `slurm_dl.model.profile`, and written."""

from __future__ import annotations

import json
from dataclasses import replace

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from slurm_dl.error_text import sentence
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.profile import Profile, skew_of
from slurm_dl.text import escaped
from slurm_dl.yaml_places import Document, Problem, SourcePlace, dotted

_MOST_MISTAKES = 50

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
            mistakes = [_mistake(one, document, name) for one in err.errors(include_url=False)]
        else:
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


def _mistake(error: ErrorDetails, document: Document, name: str) -> str:
    path = tuple(part for part in error["loc"][1:] if part != "[key]")
    above = (path[:end] for end in range(len(path), -1, -1))
    place = next((document.places[at] for at in above if at in document.places), None)
    return str(Problem(place or SourcePlace(1, name), dotted(path), sentence(error)))

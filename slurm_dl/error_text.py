"""What is wrong, in our own words: one short sentence for each kind of mistake.

It stands alone because files, flags, profiles and policies' parameters all report through it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from slurm_dl.text import number, shown

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_LONGEST_KEY = 40

# Text that YAML reads as text without quotes.
_PLAIN = r"[A-Za-z_/][A-Za-z0-9_./-]*"
_NOT_TEXT = frozenset({"true", "false", "null"})

_TEXT_TYPES = frozenset({"string_type", "literal_error"})

# The value says nothing that the place does not.
_TOLD = frozenset({"missing", "unexpected_keyword_argument", "json_invalid"})

_TEMPLATES: Mapping[str, str] = {
    "missing": "is required",
    "unexpected_keyword_argument": "unknown key",
    "json_invalid": "has half a character (one of U+D800 to U+DFFF)",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "path_type": "must be a path",
    "literal_error": "must be {expected}",
    "list_type": "must be a list",
    "tuple_type": "must be a list, such as [a, b]",
    "too_short": "must have at least {min_length} entry",
    "dict_type": "must be a mapping of names to values",
    "too_long": "must have at most {max_length} entries",
    "string_too_long": "must have at most {max_length} characters",
    "union_tag_invalid": "must be one of {expected_tags}",
    "model_type": "must be a section with keys of its own",
    "dataclass_type": "must be a mapping of names to values",
}
"""By pydantic's name of the error; the braces are filled from its context."""


def sentence(error: ErrorDetails) -> str:
    """What is wrong with one value, and what it was."""
    kind, value = error["type"], error["input"]
    if kind == "wrong":
        return str(error["ctx"]["text"])
    if kind in _TOLD:
        return _TEMPLATES[kind]
    if kind == "value_error":
        return f"{error['ctx']['error']} (got {shown(value)})"
    if value is None:
        return "has no value: give it one, or delete the line"
    context = {name: number(item) for name, item in error.get("ctx", {}).items()}
    template = _TEMPLATES.get(kind)
    text = template.format(**context) if template else error["msg"]
    hint = ""
    if kind in _TEXT_TYPES and isinstance(value, bool | int | float):
        hint = "; put it in quotes"
    return f"{text} (got {shown(value)}){hint}"


def unknown_key(key: str, valid: Iterable[str], elsewhere: Sequence[str] = ()) -> str:
    """The sentence for a key that does not exist, with the nearest that do.

    Args:
        valid: The keys that exist at this place.
        elsewhere: Where else a key of this very name exists.
    """
    names = list(valid)
    near = elsewhere or difflib.get_close_matches(key[:_LONGEST_KEY], names, n=3)
    if near:
        return f"unknown key; did you mean {' or '.join(near)}?"
    return f"unknown key; possible here: {', '.join(names) or 'none'}"


def written(value: object) -> str:
    """A value as it would stand in the file."""
    match value:
        case None:
            text = "null"
        case bool():
            text = str(value).lower()
        case list() | tuple():
            text = f"[{', '.join(written(item) for item in value)}]"
        case dict():
            items = (f"{written(key)}: {written(item)}" for key, item in value.items())
            text = f"{{{', '.join(items)}}}"
        case int() | float():
            text = number(value)
        case _:
            text = _quoted(str(value))
    return text


def _quoted(text: str) -> str:
    plain = re.fullmatch(_PLAIN, text) and text.lower() not in _NOT_TEXT
    return text if plain else json.dumps(text)

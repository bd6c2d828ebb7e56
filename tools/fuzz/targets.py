"""All parsers of the project: what the fuzzer, the unit tests and the document go by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from tools.fuzz import (
    accounting,
    controller,
    documents,
    job,
    nodes,
    queue,
    shadow,
    simulator,
    submit,
    traces,
    wire,
)
from tools.fuzz.target import Target

_AREAS = (
    queue,
    nodes,
    controller,
    accounting,
    documents,
    traces,
    wire,
    submit,
    job,
    simulator,
    shadow,
)

TARGETS: Final[Mapping[str, Target]] = MappingProxyType(
    {target.name: target for area in _AREAS for target in area.TARGETS}
)
"""By name, area by area."""


def table() -> Iterator[str]:
    """The table of the parsers in docs/develop/hostile-input.md, line by line."""
    yield "| target | parser | reads | its own errors |"
    yield "|---|---|---|---|"
    for target in TARGETS.values():
        errors = ", ".join(f"`{kind.__name__}`" for kind in target.own) or "none"
        parser = f"`{target.parser.replace(', ', '`, `')}`"
        yield f"| `{target.name}` | {parser} | {target.source} | {errors} |"

"""Parts of the generated pages: tables of parameters, cells, words for types."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING
from pathlib import Path

from slurm_dl.config.parameters import parameters_of
from slurm_dl.error_text import written

TABLE_HEAD = ("| key | default | allowed | meaning |", "|---|---|---|---|")


def first_line(documented: type[object]) -> str:
    """What a class is, in its docstring's first line."""
    return (documented.__doc__ or "").partition("\n")[0]


def parameter_table(kind: type[object]) -> Iterator[str]:
    """Lines of a table of what can be set of a policy, a scheme or a rule."""
    parameters = parameters_of(kind)
    if not parameters:
        yield "No parameters."
        return
    yield from TABLE_HEAD
    for p in parameters:
        yield table_row(f"`{p.name}`", default_cell(p.default), kind_of(p.hint), p.meaning)


def table_row(*cells: str) -> str:
    """A line of a table."""
    escaped = (cell.replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def default_cell(default: object) -> str:
    """A default as it would stand in the file."""
    return "required" if default is MISSING else f"`{written(default)}`"


def kind_of(hint: object) -> str:
    """What a value of this type is called by somebody who writes YAML."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return f"one of {', '.join(written(value) for value in typing.get_args(hint))}"
    if origin is tuple:
        return "list of numbers" if typing.get_args(hint)[0] in {int, float} else "list"
    names: Mapping[object, str] = {
        bool: "true or false",
        int: "whole number",
        float: "number",
        Path: "absolute path",
        Mapping: "mapping",
    }
    return names.get(origin or hint, "text")

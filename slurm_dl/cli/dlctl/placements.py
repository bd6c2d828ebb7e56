"""``dlctl placements``: the schemes and rules that say where jobs go."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import click

from slurm_dl.cli.commandline import print_json
from slurm_dl.cli.shared_options import AS_JSON
from slurm_dl.config.parameters import RULE, SCHEME, parameters_of
from slurm_dl.error_text import written
from slurm_dl.json_types import Json, JsonObject
from slurm_dl.model.errors import ConfigError
from slurm_dl.report.terminal_table import Column, show
from slurm_dl.text import safe


@click.group(invoke_without_command=True)
@AS_JSON
@click.pass_context
def placements(ctx: click.Context, *, as_json: bool) -> None:
    """List the schemes and rules of placement, and the paper each comes from.

    One scheme can stand in placement.scheme: it chooses the nodes. Any rules can stand in
    placement.rules: they say where a job may not, or had better not be.

    \b
    Examples:
      dlctl placements
      dlctl placements show best_fit
    """  # noqa: D301 - \b is click's mark
    if ctx.invoked_subcommand is not None:
        return
    found = list(_all())
    if as_json:
        print_json(found)
        return
    columns = (Column(title="NAME"), Column(title="KIND"), Column(title="SOURCE", least=20))
    show(columns, [[str(p["name"]), str(p["kind"]), str(p["source"])] for p in found])


@placements.command("show")
@click.argument("name")
@AS_JSON
def show_(name: str, *, as_json: bool) -> None:
    """Say what a scheme or a rule does, how it reads its source, and what can be set of it.

    \b
    Example:
      dlctl placements show best_fit
    """  # noqa: D301 - \b is click's mark
    found = [p for p in _all() if p["name"] == name]
    if not found:
        known = ", ".join(dict.fromkeys(str(p["name"]) for p in _all()))
        msg = f"no scheme or rule {safe(name, 60)!r}; there are {known}"
        raise ConfigError(msg)
    if as_json:
        print_json(found[0])
        return
    for line in _lines(found[0]):
        click.echo(safe(line, 1000))


def _all() -> Iterator[JsonObject]:
    """Each scheme and rule as plain values; what cannot be loaded says so in place of its source.

    Schemes first, each kind by name.
    """
    for kind, family in (("scheme", SCHEME), ("rule", RULE)):
        for name in family.names():
            try:
                family.check(name)
                yield _object(name, kind, family.find(name))
            except ValueError as err:
                yield {
                    "name": name,
                    "kind": kind,
                    "source": f"cannot be used: {err}",
                    "interpretation": "",
                    "parameters": [],
                }


def _object(name: str, kind: str, found: Any) -> JsonObject:  # noqa: ANN401 - a class of a site

    parameters: list[Json] = [
        {
            "name": p.name,
            "default": _plain(p.default),
            "required": p.default is dataclasses.MISSING,
            "meaning": p.meaning,
        }
        for p in parameters_of(found)
    ]
    about = (found.__doc__ or "").partition("\n")[0]
    strict = {"strict": bool(found.strict)} if kind == "rule" else {}
    return {
        "name": name,
        "kind": kind,
        "about": about,
        "source": str(found.source),
        "interpretation": str(found.interpretation),
        "parameters": parameters,
        **strict,
    }


def _plain(value: object) -> Json:
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case tuple() | list():
            return [_plain(item) for item in value]
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case _ if value is dataclasses.MISSING:
            return None
        case _:
            return str(value)


def _lines(found: JsonObject) -> Iterator[str]:
    yield f"{found['name']} ({found['kind']}{_strictness(found)}): {found.get('about', '')}"
    yield f"Source: {found['source']}"
    if found["interpretation"]:
        yield f"Interpretation: {found['interpretation']}"
    parameters = found["parameters"]
    assert isinstance(parameters, list)  # noqa: S101 - narrows the type
    yield "Parameters:" if parameters else "No parameters."
    for p in parameters:
        assert isinstance(p, dict)  # noqa: S101 - narrows the type
        default = "required" if p["required"] else f"default {written(p['default'])}"
        yield f"  {p['name']} ({default}): {p['meaning']}"


def _strictness(found: JsonObject) -> str:
    if "strict" not in found:
        return ""
    return ", never broken" if found["strict"] else ", broken where nothing else fits"

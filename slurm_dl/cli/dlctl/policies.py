"""Policies as plain values and as text, for ``dlctl`` and ``dlsim``.

Commands: ``dlctl policies``, and ``dlctl placements`` for the schemes and rules of placement.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from slurm_dl.cli.commandline import print_json
from slurm_dl.cli.shared_options import AS_JSON
from slurm_dl.config.parameters import POLICY, RULE, SCHEME, parameters_of
from slurm_dl.error_text import written
from slurm_dl.json_types import Json, JsonObject
from slurm_dl.model.errors import ConfigError
from slurm_dl.policies import policy_file, registry
from slurm_dl.policies.policy_text import (
    LEVELS,
    need_in_words,
    preempts_in_words,
    shown_by,
    unit_of,
)
from slurm_dl.policies.registry import runs_on_slurm
from slurm_dl.report.terminal_table import Column, show
from slurm_dl.text import safe

_MOST_VALUES: Final = 8
_LONGEST: Final = 10_000
_TITLE: Final = 12
_OF_ABOUT: Final = ("row", "level", "fallback", "formula", "starves", "idles")

Described = dict[str, Any]
"""A policy as plain values; see `described`."""


def _completions(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in registry.names() if name.startswith(begun)]


@click.group(invoke_without_command=True)
@AS_JSON
@click.pass_context
def policies(ctx: click.Context, *, as_json: bool) -> None:
    """List the policies: the published system each is, what is shown of it, what it needs.

    ROW and LEVEL are explained in docs/evaluate/policies.md. Those that run on Slurm can stand in
    policy.order; what the others do there has not been shown, and they run in dlsim.

    \b
    Examples:
      dlctl policies
      dlctl policies --json
      dlctl policies show discrete_las
    """  # noqa: D301 - \b is click's mark
    if ctx.invoked_subcommand is not None:
        return
    found = all_policies()
    if as_json:
        print_json(found)
        return
    columns = (
        Column(title="NAME"),
        Column(title="ROW"),
        Column(title="LEVEL", short="LV"),
        Column(title="RUNS"),
        Column(title="NEEDS", least=10, folds=True),
        Column(title="RULE", least=16, folds=True),
    )
    show(columns, [_cells(p) for p in found])


@policies.command("show")
@click.argument("name", shell_complete=_completions)
@AS_JSON
def show_(name: str, *, as_json: bool) -> None:
    """Say all of one policy: paper, formula, needs, whom it preempts, who starves, parameters.

    \b
    Examples:
      dlctl policies show discrete_las
      dlctl policies show ./mine.py:Mine
    """  # noqa: D301 - \b is click's mark
    if policy_file.is_file(name):
        POLICY.usable(name)
    elif name not in registry.names():
        raise ConfigError(_unknown(name, registry.names()))
    found = described(name)
    if as_json:
        print_json(found)
        return
    for line in lines(found, _width()):
        click.echo(line)


def _unknown(name: str, names: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name[:60], names, n=3)
    there = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names)}"
    return f"no policy {safe(name, 60)!r}; {there}"


def all_policies() -> list[Described]:
    """Each policy as plain values, by name; see `described`."""
    return [described(name) for name in registry.names()]


def described(name: str) -> Described:
    """What there is to know of a policy, as plain values.

    ``error`` says why it cannot be used, and then the rest is empty; null if it can.
    """
    try:
        kind: Any = POLICY.usable(name)
        return {"name": name, "error": None, **_values(kind)}
    except (ConfigError, ValueError, AttributeError) as err:
        known = _values(registry.find("fifo")) | {"tiers": None}
        empty = {key: None if value is None else type(value)() for key, value in known.items()}
        return {"name": name, "error": str(err), **empty}


def _values(kind: Any) -> Described:  # noqa: ANN401 - a class of a site
    about = kind.about
    return {
        "rule": (kind.__doc__ or "").partition("\n")[0],
        **{name: str(getattr(about, name)) for name in _OF_ABOUT},
        "source": str(kind.source),
        "needs": [str(need) for need in about.needs],
        "interpretation": str(kind.interpretation),
        "trusts": [str(said) for said in about.trusts],
        "preempts": str(kind.preempts),
        "skips": bool(kind.skips),
        "tiers": _tiers(kind),
        "on_slurm": bool(runs_on_slurm(kind)),
        "shown_by": shown_by(kind.name, about.level) if kind.name in registry.POLICIES else "",
        "module": str(kind.__module__),
        "parameters": [
            {
                "name": p.name,
                "meaning": p.meaning,
                "default": plain(p.default),
                "required": p.default is dataclasses.MISSING,
                "unit": unit_of(p.name),
            }
            for p in parameters_of(kind)
        ],
    }


def _tiers(kind: Any) -> int | None:  # noqa: ANN401 - a class of a site
    """How many tiers it has as it comes; None if it must be given parameters first."""
    try:
        return int(kind().tiers)
    except TypeError:
        return None


def plain(value: object) -> Json:
    """A parameter's value as JSON has it; null if there is none."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case bool() | int() | float() | str():
            return value
        case tuple() | list():
            return [plain(item) for item in value]
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case _ if value is None or value is dataclasses.MISSING:
            return None
        case _:
            return str(value)


def _cells(policy: Described) -> list[str]:
    error = policy["error"]
    rule = policy["rule"] if error is None else f"cannot be used: {error}"
    runs = "" if error is not None else "Slurm" if policy["on_slurm"] else "dlsim"
    cells = (policy["row"], policy["level"], runs, ", ".join(policy["needs"]))
    return [policy["name"], *(cell or "-" for cell in cells), rule]


def lines(policy: Described, width: int) -> Iterator[str]:
    """All of a policy for people.

    Args:
        width: Characters of a line; 0: each fact on one line, however long.
    """
    if policy["error"] is not None:
        yield from wrapped(f"{policy['name']} cannot be used: {policy['error']}", width)
        return
    yield from wrapped(f"{policy['name']}: {policy['rule']}", width)
    yield ""
    for title, text in _facts(policy).items():
        yield from wrapped(text, width, f"{title + ':':<{_TITLE}}", " " * _TITLE)
    yield ""
    if not policy["parameters"]:
        yield "No parameters."
        return
    yield "Parameters:"
    yield from parameter_lines(policy, width, "  ")


def _facts(policy: Described) -> dict[str, str]:
    level = policy["level"]
    facts = {
        "Source": policy["source"],
        "Row": policy["row"],
        "Level": f"{level}: {LEVELS.get(level, 'not known')}",
        "Shown by": policy["shown_by"],
        "Runs": "on Slurm and in dlsim" if policy["on_slurm"] else "in dlsim only",
        "Formula": policy["formula"],
        "Read as": policy["interpretation"],
        "Needs": "; ".join(need_in_words(n) for n in policy["needs"]) or "nothing beyond the queue",
        "Without it": policy["fallback"],
        "Preempts": preempts_in_words(policy["preempts"], policy["tiers"]),
        "Passing": "jobs behind one that does not fit may start before it"
        if policy["skips"]
        else "a job that does not fit blocks all jobs behind it",
        "Starves": policy["starves"] or "no job",
        "Idle GPUs": policy["idles"] or "none that a waiting job could use",
        "Trusts": "; ".join(policy["trusts"]) or "nothing that jobs say of themselves",
    }
    return {title: text for title, text in facts.items() if text}


def parameter_lines(policy: Described, width: int, indent: str) -> Iterator[str]:
    """Each parameter with its default, unit and meaning.

    Args:
        indent: Before the name of each.
    """
    for p in policy["parameters"]:
        unit = f", {p['unit']}" if p["unit"] else ""
        default = "required" if p["required"] else f"default {told(p['default'])}"
        text = f"{p['name']} ({default}{unit}): {p['meaning']}"
        yield from wrapped(text, width, indent, " " * max(4, len(indent)))


def told(value: object) -> str:
    """A value as it would be typed after ``-p KEY=``."""
    if isinstance(value, list) and len(value) > _MOST_VALUES:
        return f"a table of {len(value)} values"
    return written(value)


def wrapped(text: str, width: int, first: str = "", rest: str = "  ") -> list[str]:
    """*text* in lines of so many characters, one line if 0; text of plugins is a stranger's."""
    text = safe(text, _LONGEST)
    if not width:
        return [first + text]
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )


def _width() -> int:
    """Characters of a line on the terminal; 0 for a pipe."""
    return max(40, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 0


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
def show_placement(name: str, *, as_json: bool) -> None:
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
            "default": plain(p.default),
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

"""Lists of what can be chosen: ``dlctl policies`` and ``placements``, and ``dlsim policies``."""

from __future__ import annotations

import dataclasses
import difflib
import math
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from slurm_dl.cli.commandline import AS_JSON, print_json
from slurm_dl.config.parameters import POLICY, RULE, SCHEME, parameters_of
from slurm_dl.error_text import written
from slurm_dl.json_types import Json
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
from slurm_dl.report import export
from slurm_dl.report.terminal_table import Column, show
from slurm_dl.simulation.ideal.presets import PRESETS, Preset
from slurm_dl.text import safe

_MOST_VALUES: Final = 8
_LONGEST: Final = 10_000
_TITLE: Final = 12
_OF_ALL: Final = ("tick_s", "round_s", "start_s", "restart_s", "large_restart_s", "large_gpus")
_SIMULATED_WIDTH: Final = 80
_OF_ABOUT: Final = ("row", "level", "fallback", "formula", "starves", "idles")

Described = dict[str, Any]  # A policy as plain values; see `described`


def _list(
    ctx: click.Context,
    known: Callable[[], list[Described]],
    columns: Sequence[Column],
    cells: Callable[[Described], list[str]],
    *,
    as_json: bool,
) -> None:
    if ctx.invoked_subcommand is not None:
        return
    if as_json:
        print_json(known())
    else:
        show(columns, [cells(one) for one in known()])


def _show(
    found: Described, lines: Callable[[Described, int], Iterator[str]], *, as_json: bool
) -> None:
    if as_json:
        print_json(found)
        return
    # 0, for a pipe: each fact on one line, however long.
    width = max(40, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 0
    for line in lines(found, width):
        click.echo(line)


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
    columns = (
        *(Column(title="NAME"), Column(title="ROW"), Column(title="LEVEL", short="LV")),
        *(Column(title="RUNS"), Column(title="NEEDS", least=10, folds=True)),
        Column(title="RULE", least=16, folds=True),
    )
    _list(ctx, all_policies, columns, _cells, as_json=as_json)


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
    _show(described(name), _lines, as_json=as_json)


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
        "parameters": _parameters(kind, "name", "meaning", "default", "required", "unit"),
    }


def _parameters(kind: Any, *keys: str) -> list[Described]:  # noqa: ANN401 - a class of a site
    told: list[Described] = []
    for p in parameters_of(kind):
        required = p.default is dataclasses.MISSING
        default = {"default": plain(p.default), "required": required}
        told.append({"name": p.name, "meaning": p.meaning, **default, "unit": unit_of(p.name)})
    return [{key: parameter[key] for key in keys} for parameter in told]


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


def _lines(policy: Described, width: int) -> Iterator[str]:
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
    yield from _parameter_lines(policy, width, "  ")


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


def _parameter_lines(policy: Described, width: int, indent: str) -> Iterator[str]:
    for p in policy["parameters"]:
        unit = f", {p['unit']}" if p.get("unit") else ""
        default = "required" if p["required"] else f"default {_told(p['default'])}"
        text = f"{p['name']} ({default}{unit}): {p['meaning']}"
        yield from wrapped(text, width, indent, " " * max(4, len(indent)))


def _told(value: object) -> str:
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
    columns = (Column(title="NAME"), Column(title="KIND"), Column(title="SOURCE", least=20))
    _list(ctx, _all, columns, lambda p: [p["name"], p["kind"], p["source"]], as_json=as_json)


@placements.command("show")
@click.argument("name")
@AS_JSON
def show_placement(name: str, *, as_json: bool) -> None:
    """Say what a scheme or a rule does, how it reads its source, and what can be set of it.

    \b
    Example:
      dlctl placements show best_fit
    """  # noqa: D301 - \b is click's mark
    known = _all()
    found = next((p for p in known if p["name"] == name), None)
    if found is None:
        names = ", ".join(dict.fromkeys(p["name"] for p in known))
        msg = f"no scheme or rule {safe(name, 60)!r}; there are {names}"
        raise ConfigError(msg)
    _show(found, _placement_lines, as_json=as_json)


def _all() -> list[Described]:
    """Each scheme and rule as plain values; what cannot be loaded says so in place of its source.

    Schemes first, each kind by name.
    """
    families = (("scheme", SCHEME), ("rule", RULE))
    return [_placement(name, kind, of) for kind, of in families for name in of.names()]


def _placement(name: str, kind: str, family: Any) -> Described:  # noqa: ANN401 - of either kind
    named = {"name": name, "kind": kind}
    try:
        family.check(name)
        found = family.find(name)
        return {
            **named,
            "about": (found.__doc__ or "").partition("\n")[0],
            "source": str(found.source),
            "interpretation": str(found.interpretation),
            "parameters": _parameters(found, "name", "default", "required", "meaning"),
            **({"strict": bool(found.strict)} if kind == "rule" else {}),
        }
    except ValueError as err:
        source = f"cannot be used: {err}"
        return {**named, "source": source, "interpretation": "", "parameters": []}


_STRICT: Final = {True: ", never broken", False: ", broken where nothing else fits", None: ""}


def _placement_lines(found: Described, _: int) -> Iterator[str]:
    kind = f"{found['kind']}{_STRICT[found.get('strict')]}"
    yield from wrapped(f"{found['name']} ({kind}): {found.get('about', '')}", 0)
    yield from wrapped(f"Source: {found['source']}", 0)
    if found["interpretation"]:
        yield from wrapped(f"Interpretation: {found['interpretation']}", 0)
    yield "Parameters:" if found["parameters"] else "No parameters."
    yield from _parameter_lines(found, 0, "  ")


@click.command(name="policies")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def policies_command(*, as_json: bool) -> None:
    """List the policies with their parameters, and the presets with what they set.

    'dlctl policies show NAME' says more of a policy. Your own needs no change here: FILE.py:CLASS
    in place of a name runs a class in a file, and a package lists its policies as entry points of
    the group slurm_dl.policies (docs/develop/add-a-policy.md).

    \b
    Example:
      dlsim policies
    """  # noqa: D301 - \b is click's mark
    policies = all_policies()
    presets = [_preset_json(name, preset) for name, preset in PRESETS.items()]
    if as_json:
        print_json({"policies": policies, "presets": presets})
        return
    for policy in policies:
        click.echo("\n".join([*_simulated_lines(policy), ""]))
    click.echo("Presets: --preset NAME, or NAME:PRESET in --policies\n")
    for preset in presets:
        click.echo("\n".join([*_preset_lines(preset), ""]))


def _preset_json(name: str, preset: Preset) -> Described:
    told: Described = export.plain(preset)
    del told["others"]
    return {"name": name, **told.pop("clockwork"), **told}


def _simulated_lines(policy: Described) -> Iterator[str]:
    if policy["error"] is not None:
        yield from wrapped(policy["error"], _SIMULATED_WIDTH, f"{policy['name']}: ")
        return
    where = "Slurm and simulator" if policy["on_slurm"] else "simulator only"
    tiers = "?" if policy["tiers"] is None else policy["tiers"]
    displaced = preempts_in_words(policy["preempts"], policy["tiers"])
    head = f"{policy['name']}  ({where}; tiers: {tiers}; displaces: {displaced})"
    yield from wrapped(head, _SIMULATED_WIDTH)
    yield from _parameter_lines(policy, _SIMULATED_WIDTH, "  -p ")


def _preset_lines(preset: Described) -> Iterator[str]:
    yield from wrapped(f"{preset['name']}: {preset['about']}", _SIMULATED_WIDTH)
    for policy, reading in preset["readings"].items():
        values = [f"{name} {_told(value)}" for name, value in reading["parameters"].items()]
        text = ", ".join([f"{policy}: runs {reading['policy']}", *values])
        yield from wrapped(text, _SIMULATED_WIDTH, "  ", "    ")
    given = {name: preset[name] for name in _OF_ALL}
    values = [f"{name} {_told(value)}" for name, value in given.items() if value]
    if preset["charges"] != "restart":
        values.append(f"charges {preset['charges']}")
    if values:
        yield from wrapped(f"all policies: {', '.join(values)}", _SIMULATED_WIDTH, "  ", "    ")

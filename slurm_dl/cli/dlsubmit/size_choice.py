"""The size of a job with a deadline, chosen once from ``--gpus 2,4,8`` before it is submitted.

Source: Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep
Learning", ASPLOS 2023 (the minimum satisfactory share; on Slurm a size is kept once it is chosen).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from slurm_dl.cli.commandline import print_json
from slurm_dl.cli.dlsubmit import verdict
from slurm_dl.daemon.control.client import DaemonError
from slurm_dl.json_types import JsonObject, as_list
from slurm_dl.model.errors import ConfigError, ElsewhereError
from slurm_dl.text import safe

MOST_SIZES: Final = 8  # As many shapes as one request may have

_LIST = re.compile(r"(?P<type>(?:[\w.-]{1,64}:)?)\d{1,6}(?:,(?P=type)\d{1,6})+", re.ASCII)

OneSize = Mapping[str, str]
"""Options of dlsubmit that are other than typed in this size, by the names of its parameters."""


def sizes_of(typed: Mapping[str, Any], by: object) -> tuple[OneSize, ...]:
    """The sizes of a list in ``--gpus``, in the order typed; one without changes if it is no list.

    Args:
        typed: dlsubmit's options.
        by: The deadline; None if there is none.

    Raises:
        ConfigError: Sizes or time limits are wrong, or an option has no meaning beside a list, or
            without a deadline.
    """
    for name in ("quote", "or_else"):
        if typed.get(name) and not by:
            msg = f"--{name.replace('_', '-')} needs a deadline: --by TIME"
            raise ConfigError(msg)
    gpus, time = typed.get("gpus") or "", typed.get("time")
    # Other lists, such as volta:3,kepler:5 of a script, are left to whoever reads --gpus.
    if not _LIST.fullmatch(gpus):
        return ({},)
    words, what = gpus.split(","), f"--gpus={safe(gpus, 80)}"
    counts = [_count({"gpus": word}) for word in words]
    limits = [] if time is None else time.split(",")
    wrong = {
        "one of several sizes is chosen by a deadline; give --by TIME, or one size": by is None,
        "with --sizes the job has no single size to promise; leave one of them out": typed.get(
            "sizes"
        ),
        f"at most {MOST_SIZES} sizes; leave some out": len(words) > MOST_SIZES,
        "sizes are numbers of 1 or more, each of them once": len({*counts, 0}) <= len(counts),
        f"--time has {len(limits)} limits for {len(words)} sizes; give one for each, or one for"
        " all": len(limits) not in {0, 1, len(words)},
    }
    for why, is_so in wrong.items():
        if is_so:
            msg = f"{what}: {why}"
            raise ConfigError(msg)
    times = [{"time": limit} for limit in limits] if len(limits) > 1 else [{}] * len(words)
    return tuple({"gpus": word, **more} for word, more in zip(words, times, strict=True))


def choose(
    params: Mapping[str, Any], sizes: Sequence[OneSize], questions: Sequence[verdict.Question]
) -> tuple[int, int | None]:
    """The smallest of *sizes* that is promised, else the first; tells the verdict on it.

    Of a single size the verdict is asked for only if somebody wants to know it.

    Args:
        params: dlsubmit's options.
        questions: One about each size.

    Returns:
        The number of the size, and the exit status if nothing is to be submitted, else None.

    Raises:
        ConfigError: There can be no verdict on one of several sizes.
        DaemonError: ``--quote``, and there is no verdict.
    """
    several, quote = len(sizes) > 1, params["quote"]
    cancels = params["or_else"] == "cancel" and not (params["dry_run"] or params["diff"])
    tells = not params["quiet"] if several else verdict.is_told(params)
    if not (several or quote or cancels or tells):
        return 0, None
    question = _in_one(questions) if several else questions[0]
    try:
        answer = verdict.ask(question, within_s=verdict.ODDS_S if quote else verdict.RUN_S)
    except (DaemonError, ConfigError, ElsewhereError) as err:
        if quote:
            raise
        best, lines, no = None, list[str](), f", as there is no verdict: {err}"
        note = (
            f"no verdict, so the first size is taken, {sizes[0]['gpus']}: {err}" if several else ""
        )
    else:
        best, lines, note = _verdicts(answer, sizes)
        no = f": {' | '.join(lines)}"
    if quote:
        if params["as_json"]:
            print_json(answer)
        elif not params["quiet"]:
            click.echo("\n".join(safe(line, 500) for line in lines))
        return best or 0, verdict.NOT_PROMISED if best is None else 0
    if best is None and cancels:
        verdict.say(f"not submitted (--or-else cancel){no}")
        return 0, verdict.NOT_PROMISED
    if tells and note:
        verdict.say(f"note: {note}")
    return best or 0, None


def _verdicts(answer: JsonObject, sizes: Sequence[OneSize]) -> tuple[int | None, list[str], str]:
    """The smallest size that is promised, a line on each size, and one on the size to be taken."""
    ones: list[JsonObject] = [{**answer, "shapes": [one]} for one in as_list(answer["shapes"])]
    lines = [verdict.verdict_line(one) for one in ones]
    if len(sizes) == 1:
        return (0 if verdict.is_promised(ones[0]) else None), lines, lines[0]
    counts = [_count(size) for size in sizes]
    lines = [f"{n} GPUs: {line}" for n, line in zip(counts, lines, strict=True)]
    by_size = sorted(range(len(sizes)), key=counts.__getitem__)
    best = next((i for i in by_size if verdict.is_promised(ones[i])), None)
    if best is None:
        return None, lines, f"none of the sizes is promised, so the first is taken, {lines[0]}"
    smaller = by_size[: by_size.index(best)][-1:]
    told = [f"the smallest size that is promised is taken, {lines[best]}"]
    return best, lines, " | ".join([*told, *(lines[i] for i in smaller)])


def _count(size: OneSize) -> int:
    return int(size["gpus"].rpartition(":")[2])


def _in_one(questions: Sequence[verdict.Question]) -> JsonObject:
    """One request for all shapes; `limits_s`, which is newer, only where the limits differ."""
    asked: list[JsonObject] = []
    for one in questions:
        if isinstance(one, str):
            msg = f"--gpus: one of several sizes is chosen by a verdict, and {one}; give one size"
            raise ConfigError(msg)
        asked.append(one)
    limits = [one["limit_s"] for one in asked]
    whole = {**asked[0], "shapes": [shape for one in asked for shape in as_list(one["shapes"])]}
    same = all(limit == limits[0] for limit in limits)
    return whole if same else {**whole, "limit_s": None, "limits_s": limits}

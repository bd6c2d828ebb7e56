"""Forecasts as sentences: in about how long, from when to when, and what that is worth."""

from __future__ import annotations

import math

from slurm_dl.json_types import Json, JsonObject, as_list, number
from slurm_dl.text import ago

_NOW_S = 60.0
_FEW_RANGES = 10
FEW_RUNS = 10  # Ranges of fewer runs are called rough, and are not held against what happens
LEAST_RUNS = 3  # With fewer a submission says nothing


def job_lines(answer: JsonObject) -> list[str]:
    """What ``dlqueue when JOB`` prints; the text is not made safe yet."""
    name, now_s = f"Job {answer['job']}", number(answer["now_s"])
    if why := answer["why_not"]:
        return [f"{name}: nothing can be said of its start: {why}."]
    start, end = _object(answer["start"]), _object(answer["end"])
    ahead_s = number(answer["until_s"]) - now_s
    lines = []
    if answer["state"] == "PD":
        lines.append(f"{name} starts {range_text(start, now_s, ahead_s)}.")
        lines.append(f"It ends {range_text(end, now_s, ahead_s)}.")
    else:
        lines.append(f"{name} runs, and ends {range_text(end, now_s, ahead_s)}.")
    # A daemon of an earlier release does not say it.
    if (left_s := answer.get("left_s")) is not None:
        done = math.floor(number(answer.get("progress")) * 100 + 1e-6)
        lines.append(f"It reports {done}% done: at the pace so far {ago(number(left_s))} are left.")
    return [*lines, *_worth(answer)]


def shape_lines(answer: JsonObject) -> list[str]:
    """What ``dlsubmit --when`` prints, two lines for each shape; not made safe yet."""
    now_s, shapes = number(answer["now_s"]), answer["shapes"]
    lines, is_told = [], False
    for one in as_list(shapes):
        if not isinstance(one, dict):
            continue
        nodes = f" on {one['n_nodes']} nodes" if number(one["n_nodes"]) > 1 else ""
        what = f"{one['gpus']} GPU{'' if one['gpus'] == 1 else 's'}{nodes}"
        if one["why_not"]:
            lines.append(f"{what}: {one['why_not']}.")
            continue
        is_told = True
        lines.append(f"{what}: {_both(one, now_s)}.")
        # A daemon of an earlier release does not say it.
        if other := _object(one.get("no_preempt")):
            lines.append(f"  with --no-preempt: {_both(other, now_s)}{_counts(other)}.")
    return [*lines, *(_worth(answer) if is_told else [])]


def _both(one: JsonObject, now_s: float) -> str:
    ahead_s = number(one["until_s"]) - now_s
    start = range_text(_object(one["start"]), now_s, ahead_s)
    end = range_text(_object(one["end"]), now_s, ahead_s)
    return f"starts {start}, ends {end}"


def preview_text(answer: JsonObject, *, no_preempt: bool) -> str:
    """When the one shape of *answer* would start, with and without ``--no-preempt``.

    Empty where too little is known: few runs, or an answer without the other way.

    Args:
        no_preempt: That is what was typed; the other is then without it.
    """
    shapes, now_s, runs = answer["shapes"], number(answer["now_s"]), number(answer["runs"])
    one = _object(shapes[0]) if isinstance(shapes, list) and shapes else {}
    other = _object(one.get("no_preempt"))
    if not other or runs < LEAST_RUNS:
        return ""
    with_contract, without = (
        _about(_object(each["start"]), now_s, number(each["until_s"]) - now_s)
        for each in (one, other)
    )
    first, second = (without, with_contract) if no_preempt else (with_contract, without)
    switch = f"{'without' if no_preempt else 'with'} --no-preempt"
    cost = _counts(other)
    rough = f" (rough: {runs:.0f} forward runs)" if runs < FEW_RUNS else ""
    if first == second:
        return f"would start {first}; {switch} as well{cost}{rough}"
    return f"would start {first}; {switch} {second}{cost}{rough}"


def _counts(no_preempt: JsonObject) -> str:
    """GPU time that the job counts without a contract; empty if none, or of earlier releases."""
    if (hours := no_preempt.get("kept_gpu_h")) is None:
        return ""
    place, other = no_preempt["place"], no_preempt["place_with_contract"]
    places = "" if place == other else f" (place {place}, else {other})"
    return f"; --no-preempt counts {number(hours):g} GPU-hours at once{places}"


def _about(start: JsonObject, now_s: float, ahead_s: float) -> str:
    """The median alone: ``in about 10 min``."""
    if (median := start["median_s"]) is None:
        return f"in more than {_ago_at_least(ahead_s)}"
    middle = _from_now(median, now_s)
    return middle if middle == "now" else f"in about {middle}"


def range_text(told: JsonObject, now_s: float, ahead_s: float) -> str:
    """``in about 10 min (5 min to 40 min)``; what is more than *ahead_s* ahead is said to be."""
    beyond = f"more than {_ago_at_least(ahead_s)}"
    low, median, high = (told[key] for key in ("low_s", "median_s", "high_s"))
    if low is None:
        return "not at once" if ahead_s < 1.0 else f"not within {_ago_at_least(ahead_s)}"
    first = _from_now(low, now_s)
    last = beyond if high is None else _from_now(high, now_s)
    span = f"({first} to {last})" if first != last else f"({first})"
    if median is None:
        return f"in {beyond}, as in most runs {span}"
    middle = _from_now(median, now_s)
    return f"now {span}" if middle == "now" else f"in about {middle} {span}"


def score_text(score: JsonObject) -> str:
    """How good the last ranges were; empty while there are too few to say."""
    ranges, held = number(score["ranges"]), number(score["held"])
    if ranges < _FEW_RANGES:
        return ""
    text = f"of the last {ranges:.0f} such ranges {held / ranges:.0%} held; they should be 80%"
    error_s = score["median_error_s"]
    return text if error_s is None else f"{text}; half were {ago(number(error_s))} or less off"


def _worth(answer: JsonObject) -> list[str]:
    runs = number(answer["runs"])
    if not runs:
        return [
            (
                "That is as far as one forward run got in its time: the queue is long. What comes "
                "after it is not known, and other run times may lead elsewhere."
            )
        ]
    lines = []
    score = score_text(_object(answer["score"]))
    lines.append(
        f"From {runs:.0f} forward runs of the queue as it is, if nobody submits anything more"
        f"{'; ' + score if score else ''}."
    )
    if runs < FEW_RUNS:
        lines.append("That is few: the queue is long, and the range is rough.")
    return lines


def _from_now(at: Json, now_s: float) -> str:
    seconds = number(at) - now_s
    return "now" if seconds < _NOW_S else ago(seconds)


def _ago_at_least(seconds: float) -> str:
    """`ago` rounded down: more is not known to be so."""
    # The difference of two instants: 7 days may be a little less.
    whole_s = math.floor(seconds + 1e-3)
    unit_s = next(
        (u for most, u in ((120, 1), (7200, 60), (172800, 3600)) if whole_s < most), 86400
    )
    return ago(whole_s // unit_s * unit_s)


def _object(value: Json) -> JsonObject:
    return value if isinstance(value, dict) else {}

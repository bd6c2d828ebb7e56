"""A job's comment read as a claim: lenient towards others' metadata, closed towards our own.

The comment belongs to the user and anybody may have put anything there, so nothing in it raises
an error: what is not understood is not believed. The one key read is ``slurm_dl``::

    {"slurm_dl": {"v": 1, "sig": "USR1", "to": "batch", "grace_s": 120, "by": "daemon",
                  "model": "resnet50", "ack": 3, "nodes": 4, "rate": 7.5,
                  "progress": 0.25, "cpus": 8, "mem_mb": 32000, "unhandled": [3, 2], "until": 0.8,
                  "preempted": [3, 2], "saved": 1790000000, "final": 2,
                  "failed": ["user", "1f2e3d4c", 2],
                  "due": 1790090000, "values": [[1790090000, 10], [1790150000, 5]],
                  "or_else": "run", "bid": 5,
                  "sizes": "1x1,1x2,2x2", "asked": "1x2", "batch": "fixed",
                  "in_place": 1, "steps": [2, 4, 32, 1, 0.31, 950.0, 128, 4096, 8, 64],
                  "use": [37, 1156], "data": 0, "hints": "byteps=4096000", "locked": 1,
                  "tag": "1f2e3d4c5b6a"}}

Naming ``sig`` is the opt-in to preemption. A comment that was meant to have this and has lost its
quotes, or was cut, is remembered as unreadable, so that its owner can be told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import replace
from typing import TypeGuard, get_args

from slurm_dl.model.contract import (
    LEAST_UNTIL,
    MOST_SIZES,
    NO_CLAIM,
    SIGNALS,
    Batch,
    Claim,
    Contract,
    OrElse,
    Requeuer,
    SignalTarget,
)
from slurm_dl.model.failure import Failure, FailureClass
from slurm_dl.model.profile import HINTS
from slurm_dl.model.shape import Shape, by_gpus
from slurm_dl.model.step_report import StepReport
from slurm_dl.model.value_curve import MOST_STEPS, ValueCurve

LONGEST_COMMENT = 1024  # Characters; Slurm itself takes no longer comment (measured on 22.05.8)
DEEPEST = 8  # Levels of nesting; others' metadata may lie beside ours, but Python's parser recurses
_VERSION = 1
CLAIM_KEY = "slurm_dl"
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/-]{0,63}")
_OPENED = re.compile(r"""[\s"']*\{(.*[\s"'\\{,])?slurm_dl[\s"'\\]*:""", re.DOTALL)
"""Sbatch takes unprotected quotes away, and what comes after a blank."""

_UNREADABLE = Claim(unreadable=True)
_TARGETS: dict[object, SignalTarget] = {"batch": "batch", "steps": "steps", "full": "full"}
_REQUEUERS: dict[object, Requeuer] = {"daemon": "daemon", "job": "job"}
_OR_ELSE: dict[object, OrElse] = {"run": "run", "cancel": "cancel"}
_FAILURES: dict[object, FailureClass] = {word: word for word in get_args(FailureClass)}
_TAG = re.compile(r"[0-9a-f]{12}")
_MARK = re.compile(r"[0-9a-z ]{1,16}")
_BATCHES: dict[object, Batch] = {word: word for word in get_args(Batch)}
_MOST_RESTARTS = 2**31 - 1
_MOST_NODES = 10_000
_MOST_RATE = 1e9
_HUGE = 1e12


class ClaimReader:
    """Reads comments under a site's bounds; remembers them until `forget`."""

    def __init__(self, *, max_grace_s: float, models: Collection[str] | None = None) -> None:
        """Set the bounds.

        Args:
            max_grace_s: Longest grace a job may claim, seconds; above 0.
            models: Names of the profiles there are; None leaves that to others.
        """
        if not max_grace_s > 0:
            msg = f"max_grace_s must be above 0 (got {max_grace_s})"
            raise ValueError(msg)
        self._max_grace_s = max_grace_s
        self._models = None if models is None else frozenset(models)
        self._known: dict[str, Claim] = {}

    def forget(self, most: int) -> None:
        """Drop what is remembered once it is more than *most* comments."""
        if len(self._known) > most:
            self._known.clear()

    def read(self, comment: str) -> Claim:
        """The claim in *comment*; `NO_CLAIM` if there is none."""
        claim = self._known.get(comment)
        if claim is None:
            claim = self._known[comment] = self._parse(comment)
        return claim

    def _parse(self, comment: str) -> Claim:
        ours = _our_object(comment)
        if ours is None:
            return _UNREADABLE if _was_meant(comment) else NO_CLAIM
        contract = self._contract(ours)
        word = ours.get("unhandled")
        *request, unhandled_run = word if isinstance(word, list) and word else [word]
        locked, (busy, gpu_mem_mb) = ours.get("locked") == 1, _use(ours)
        elastic = None if locked else _elastic(ours)
        return Claim(
            contract=contract,
            unreadable=contract is None and "sig" in ours,
            model=self._model(ours),
            most_nodes=_most_nodes(ours),
            cpus_per_gpu=_count(ours, "cpus_per_gpu"),
            mem_mb_per_gpu=_count(ours, "mem_mb_per_gpu"),
            least_cpus=_count(ours, "cpus"),
            least_mem_mb=_count(ours, "mem_mb"),
            rate=_rate(ours),
            progress=_progress(ours),
            acked_run=_restart(ours.get("ack")),
            unhandled_run=_restart(unhandled_run),
            unhandled_asked=len(request) == 1,
            final_run=_restart(ours.get("final")),
            failed=_failed(ours),
            preempted_run=_preempted_run(ours),
            until=_until(ours),
            saved_s=_count(ours, "saved"),
            due_s=_count(ours, "due"),
            curve=_curve(ours),
            or_else=_or_else(ours),
            bid=_count(ours, "bid", least=0),
            sizes=() if elastic is None else elastic[0],
            asked=None if elastic is None else elastic[1],
            batch="fixed" if elastic is None else elastic[2],
            steps=_steps(ours),
            gpu_busy=busy,
            gpu_mem_mb=gpu_mem_mb,
            in_place=elastic is not None and ours.get("in_place") == 1,
            data_ready=not (type(ours.get("data")) is int and ours["data"] == 0),
            hints=_hints(ours),
            tag=_tag(ours),
            locked=locked,
            sizes_unreadable=elastic is None and not locked and "sizes" in ours,
        )

    def _contract(self, ours: dict[object, object]) -> Contract | None:
        signal = ours.get("sig")
        if not isinstance(signal, str) or signal not in SIGNALS:
            return None
        plain = Contract()
        target = ours.get("to", plain.target)
        grace_s = ours.get("grace_s", plain.grace_s)
        if not isinstance(target, str) or target not in _TARGETS or not _is_number(grace_s):
            # A job that misspells how it is to be told is not told at all.
            return None
        by = ours.get("by")
        return Contract(
            signal=signal,
            target=_TARGETS[target],
            grace_s=float(min(max(grace_s, 1.0), self._max_grace_s)),
            requeued_by=_REQUEUERS.get(by, plain.requeued_by)
            if isinstance(by, str)
            else plain.requeued_by,
        )

    def _model(self, ours: dict[object, object]) -> str | None:
        model = ours.get("model")
        if not isinstance(model, str) or _MODEL.fullmatch(model) is None:
            return None
        return model if self._models is None or model in self._models else None


def tag_in(comment: str) -> str:
    """The tag that a job's comment names; empty if it names none that can be read."""
    ours = _our_object(comment)
    return "" if ours is None else _tag(ours)


def with_wckey(claim: Claim, wckey: str, limit_s: float) -> Claim:
    """*claim* with what the *wckey* of its job says: submitit gives its jobs its own name.

    submitit 1.5.4 takes a signal for a time-out after 80 % of the time limit, or 10 min before its
    end if that is sooner, and starts a job again after 3 of these only.

    Args:
        wckey: As Slurm tells it, the mark of a user's default included.
        limit_s: The job's time limit, seconds; may be infinite.
    """
    if wckey.removeprefix("*") != "submitit" or claim.contract is None or claim.until is not None:
        return claim
    share = min(0.8, 1 - 600 / limit_s) if limit_s > 0 else 0.0
    return replace(claim, until=max(share, LEAST_UNTIL))


def _was_meant(comment: str) -> bool:
    """Whether a comment that is not read was to have our object: our key stands behind a brace."""
    return CLAIM_KEY in comment and _OPENED.match(comment[:LONGEST_COMMENT]) is not None


def _our_object(comment: str) -> dict[object, object] | None:
    if CLAIM_KEY not in comment or len(comment) > LONGEST_COMMENT or _depth(comment) > DEEPEST:
        return None
    try:
        whole = json.loads(comment)
    except ValueError:
        return None
    ours = whole.get(CLAIM_KEY) if isinstance(whole, dict) else None
    if not isinstance(ours, dict):
        return None
    version = ours.get("v", _VERSION)
    return ours if type(version) is int and version == _VERSION else None


def _depth(text: str) -> int:
    # Brackets inside strings count too: that can only refuse what nobody writes.
    deepest = level = 0
    for char in text:
        if char in "[{":
            level += 1
            deepest = max(deepest, level)
        elif char in "]}":
            level -= 1
    return deepest


def _is_number(value: object) -> TypeGuard[float]:
    # The bound also keeps out NaN, infinities and integers that no float holds.
    return type(value) in (int, float) and isinstance(value, int | float) and abs(value) < _HUGE


def _most_nodes(ours: dict[object, object]) -> int | None:
    nodes = ours.get("nodes")
    return nodes if type(nodes) is int and 1 <= nodes <= _MOST_NODES else None


def _count(ours: dict[object, object], key: str, *, least: int = 1) -> int | None:
    value = ours.get(key)
    return value if type(value) is int and least <= value <= _HUGE else None


def _curve(ours: dict[object, object]) -> ValueCurve | None:
    """Values by several deadlines; None if any of it is unclear, or if `due` is not the first."""
    steps = ours.get("values")
    if not isinstance(steps, list) or len(steps) > MOST_STEPS:
        return None
    times, values = list[float](), list[float]()
    for step in steps:
        at_s, value = step if isinstance(step, list) and len(step) == 2 else (None, None)  # noqa: PLR2004 - a pair
        if type(at_s) is not int or not _is_number(at_s) or not _is_number(value):
            return None
        times.append(float(at_s))
        values.append(float(value))
    try:
        curve = ValueCurve(tuple(times), tuple(values))
    except ValueError:
        return None
    return curve if curve.due_s[0] == _count(ours, "due") else None


def _or_else(ours: dict[object, object]) -> OrElse | None:
    word = ours.get("or_else")
    return _OR_ELSE.get(word) if isinstance(word, str) else None


def _elastic(ours: dict[object, object]) -> tuple[tuple[Shape, ...], Shape | None, Batch] | None:
    """Its sizes, the one it asked for, its batch; None if it has one size, or if any is unclear."""
    named, asked, word = ours.get("sizes"), ours.get("asked"), ours.get("batch", "fixed")
    if not isinstance(named, str) or not isinstance(asked, str | None) or not isinstance(word, str):
        return None
    try:
        shapes = [Shape.of(text) for text in named.split(",")]
        first = None if asked is None else Shape.of(asked)
    except ValueError:
        return None
    sizes = by_gpus({*shapes, *([] if first is None else [first])})
    batch = _BATCHES.get(word)
    # In a size whose speed nobody knows a job would only lose.
    return (sizes, first, batch) if batch is not None and len(sizes) <= MOST_SIZES else None


def _rate(ours: dict[object, object]) -> float | None:
    rate = ours.get("rate")
    return float(rate) if _is_number(rate) and 0 < rate < _MOST_RATE else None


def _progress(ours: dict[object, object]) -> float | None:
    share = ours.get("progress")
    return min(max(float(share), 0.0), 1.0) if _is_number(share) else None


def _steps(ours: dict[object, object]) -> StepReport | None:
    try:
        return StepReport.of(ours.get("steps"))
    except ValueError:
        return None


def _use(ours: dict[object, object]) -> tuple[float | None, int | None]:
    """Busy share and memory, MB; None if any of it is unclear."""
    use = ours.get("use")
    busy, mem_mb = use if isinstance(use, list) and len(use) == 2 else (None, None)  # noqa: PLR2004 - a pair
    if not _is_number(busy) or type(mem_mb) is not int or not 0 <= mem_mb <= _HUGE:
        return None, None
    return min(max(busy / 100, 0.0), 1.0), mem_mb


def _hints(ours: dict[object, object]) -> str:
    hints = ours.get("hints", "")
    return hints if isinstance(hints, str) and re.fullmatch(HINTS, hints) else "?"


def _tag(ours: dict[object, object]) -> str:
    tag = ours.get("tag")
    return tag if isinstance(tag, str) and _TAG.fullmatch(tag) else ""


def _until(ours: dict[object, object]) -> float | None:
    share = ours.get("until")
    return max(float(share), LEAST_UNTIL) if _is_number(share) and 0 < share <= 1 else None


def _preempted_run(ours: dict[object, object]) -> int | None:
    told = ours.get("preempted")
    if not isinstance(told, list) or len(told) != 2:  # noqa: PLR2004 -- how often, and in which run
        return None
    return _restart(told[1])


def _failed(ours: dict[object, object]) -> Failure | None:
    word = ours.get("failed")
    kind, mark, run = word if isinstance(word, list) and len(word) == 3 else ("", "", None)  # noqa: PLR2004 - class, mark, run
    known = _FAILURES.get(kind) if isinstance(kind, str) else None
    restart = _restart(run)
    if known is None or restart is None or not isinstance(mark, str) or not _MARK.fullmatch(mark):
        return None
    return Failure(kind=known, mark=mark, run=restart)


def _restart(run: object) -> int | None:
    return run if type(run) is int and 0 <= run <= _MOST_RESTARTS else None

"""The words of a line as numbers, times and names. Everything here comes from files: hostile."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

from slurm_dl.slurm.read.grammar import span_s
from slurm_dl.text import shown
from slurm_dl.traces.builder import BadValue, Moment, Reason, TimeForm

MAX_NAME: Final = 256  # Characters in a job id, a user or a model
_COLONS: Final = 2
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def number(text: str, what: str) -> float:
    """A finite number.

    Raises:
        BadValue: *text* is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    # Python also reads 1_000, and 1e999 as infinite.
    if not math.isfinite(value) or "_" in text:
        raise BadValue(Reason.NUMBER, f"{what} is {shown(text)}, not a number")
    return value


def amount(text: str, what: str) -> float:
    """A number that is not negative.

    Raises:
        BadValue: *text* is none.
    """
    value = number(text, what)
    if value < 0:
        raise BadValue(Reason.NEGATIVE, f"{what} is {shown(text)}")
    return value


def whole_gpus(text: str, what: str) -> float:
    """A whole number of GPUs.

    Raises:
        BadValue: *text* is none.
    """
    value = amount(text, what)
    if value != math.floor(value):
        raise BadValue(Reason.NUMBER, f"{what} is {shown(text)}, not a whole number of GPUs")
    return value


def moment_s(text: str, what: str) -> Moment:
    """A number of seconds as it is, or a time in ISO 8601 in seconds since 1970.

    Traces tell local times without an offset; they are read as if they were UTC, so that a day of
    the trace begins at a multiple of 86,400.

    Raises:
        BadValue: *text* is neither.
    """
    text = text.strip()
    try:
        moment = datetime.fromisoformat(text) if text[4:5] == "-" else None
    except ValueError:
        moment = None
    if moment is not None:
        form = TimeForm.LOCAL if moment.tzinfo is None else TimeForm.OFFSET
        since = moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH
        return Moment(since.total_seconds(), form)
    try:
        return Moment(number(text, what), TimeForm.SECONDS)
    except BadValue:
        why = f"{what} is {shown(text)}, neither seconds nor a time like 2017-10-09 07:01:55"
        raise BadValue(Reason.TIME, why) from None


def lasting_s(text: str, what: str) -> float:
    """A number of seconds that is not negative, or Slurm's ``[D-]HH:MM:SS``.

    Raises:
        BadValue: *text* is neither.
    """
    # Slurm also writes M:S, which others take for hours and minutes.
    span = span_s(text.strip()) if text.count(":") == _COLONS else None
    return amount(text, what) if span is None else span


def name(text: str, what: str) -> str:
    """A name that can be printed, without blanks around it; may be empty.

    Raises:
        BadValue: It is too long or has unprintable characters.
    """
    text = text.strip()
    if len(text) > MAX_NAME or not text.isprintable():
        raise BadValue(Reason.NAME, f"{what} is {shown(text)}: too long or unprintable")
    return text


def account(text: str) -> str:
    """A name as `name` gives it; empty where it is none, for no result depends on it."""
    text = text.strip()
    return text if len(text) <= MAX_NAME and text.isprintable() else ""


def job_id(text: str) -> str:
    """A job's id.

    Raises:
        BadValue: It is empty, too long or unprintable.
    """
    text = name(text, "the job id")
    if not text:
        raise BadValue(Reason.NAME, "the job id is empty")
    return text

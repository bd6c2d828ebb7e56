"""Values that a user may type; every value of the command line passes through here.

What is only passed on is judged by sbatch, if it refuses what is wrong. Job names, comments and
paths end up in Slurm's records, in terminals and in other people's tools.
A newline in a job name is accepted by sbatch itself (measured on Slurm 22.05.8), so it has to be
refused here.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from typing import Literal

from slurm_dl.model.contract import MOST_SIZES
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.shape import Shape
from slurm_dl.model.value_curve import ValueCurve
from slurm_dl.slurm.read.grammar import span_s
from slurm_dl.text import shown

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", re.ASCII)
# As in slurm_dl.model.profile.
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/-]{0,63}", re.ASCII)
_GPUS = re.compile(r"(?:([A-Za-z0-9_][A-Za-z0-9._-]{0,63}):)?(\d{1,6})", re.ASCII)
_SIGNAL = re.compile(r"(?:B:)?(?:SIG)?(USR1|USR2|TERM|INT|HUP)(?:@(\d{1,5}))?", re.ASCII)

_MOST_BYTES = 4096
_MOST_NAME_BYTES = 128
_MOST_LEAD_S = 65535  # sbatch's own limit
_MOST_GRACE_S = 24 * 3600
_MOST_STATUS = 255
_LONGEST_AHEAD_S = 366 * 86400

_AHEAD = re.compile(
    r"(?:now)?\+(\d{1,9}) ?(|s(?:econds?)?|m(?:in(?:utes?)?)?|h(?:ours?)?|d(?:ays?)?|w(?:eeks?)?)",
    re.ASCII,
)
_UNIT_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_CLOCK = re.compile(
    rf"(?:(\d{{4}}-\d\d-\d\d)[T ]|({'|'.join(_DAYS)})[a-z]* )?(\d\d?):(\d\d)(?::(\d\d))?", re.ASCII
)


def clean_text(value: str, what: str, *, most_bytes: int = _MOST_BYTES) -> str:
    """Return *value* if it is one line of valid text.

    Raises:
        ConfigError: It holds a control character or a line separator, is not UTF-8, or is too long.
    """
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        msg = f"{what}: {shown(value)} is not valid UTF-8"
        raise ConfigError(msg) from None
    if any(_breaks_lines(char) for char in value):
        msg = f"{what}: {shown(value)} has a control character or a line break; take it out"
        raise ConfigError(msg)
    if size > most_bytes:
        msg = f"{what}: {size} bytes are too many; at most {most_bytes}"
        raise ConfigError(msg)
    return value


def _breaks_lines(char: str) -> bool:
    code = ord(char)
    return code < 0x20 or 0x7F <= code <= 0x9F or code in {0x2028, 0x2029}  # noqa: PLR2004


def plain_name(value: str, what: str) -> str:
    """A word that may become part of a file name or of a Slurm request."""
    if not _NAME.fullmatch(value):
        msg = f"{what}: {shown(value)} is not a name of 1 to 64 letters, digits, '.', '_' or '-'"
        raise ConfigError(msg)
    return value


def model_name(value: str) -> str:
    """A name that a model's profile may have."""
    if not _MODEL.fullmatch(value):
        msg = f"--model: {shown(value)} is not a name of 1 to 64 letters, digits and . _ + / -"
        raise ConfigError(msg)
    return value


def job_name(value: str) -> str:
    """A job name: one line, not empty, nothing that a tool could take for an option."""
    clean_text(value, "--name", most_bytes=_MOST_NAME_BYTES)
    if not value.strip() or value != value.strip() or value.startswith("-"):
        msg = f"--name: {shown(value)} is empty, starts with '-' or has blanks at an end"
        raise ConfigError(msg)
    return value


def partition_list(value: str) -> tuple[str, ...]:
    """One partition, or several between commas; sinfo says which there are."""
    return tuple(dict.fromkeys(clean_text(value, "--partition").split(",")))


def array_spec(value: str) -> str:
    """Indexes, which sbatch judges, and perhaps ``%LIMIT``, of which it ignores a wrong one."""
    if not re.fullmatch(r"[^%]+(%\d+)?", clean_text(value, "--array"), re.ASCII):
        msg = f"--array: {shown(value)} is not a list such as 0-15, 1,3,5-9:2 or 0-99%4"
        raise ConfigError(msg)
    return value


def gpu_request(value: str) -> tuple[int, str | None]:
    """``N`` or sbatch's own ``TYPE:N``; at least one GPU."""
    match = _GPUS.fullmatch(value)
    if not match or int(match[2]) < 1:
        msg = (
            f"--gpus: {shown(value)} is not a count of 1 or more (8, or a100:8; several, of"
            " one type, only with --by)"
        )
        raise ConfigError(msg)
    return int(match[2]), match[1]


def count(value: str, what: str) -> int:
    """A whole number of 1 or more."""
    if not re.fullmatch(r"\d{1,6}", value, re.ASCII) or int(value) < 1:
        msg = f"{what}: {shown(value)} is not a whole number of 1 or more"
        raise ConfigError(msg)
    return int(value)


def node_range(value: str) -> tuple[int, int]:
    """``N`` or ``MIN-MAX``: the fewest and the most nodes, at least 1."""
    match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", value, re.ASCII)
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= least <= most:
        msg = f"--nodes: {shown(value)} is not N or MIN-MAX, whole numbers of 1 or more"
        raise ConfigError(msg)
    return least, most


def sizes(value: str) -> tuple[int | Shape, ...]:
    """GPUs in all, or NODESxGPUS, between commas: in which sizes a job can run."""
    words = value.split(",", MOST_SIZES)
    if len(words) > MOST_SIZES:
        msg = f"--sizes: at most {MOST_SIZES}; leave some out"
        raise ConfigError(msg)
    try:
        return tuple(Shape.of(word) if "x" in word else count(word, "--sizes") for word in words)
    except (ConfigError, ValueError):
        msg = f"--sizes: {shown(value)} is not a list of GPUs or of NODESxGPUS, such as 1,2,4,2x4"
        raise ConfigError(msg) from None


def cpus_for_each_gpu(value: str) -> int | Literal["auto", "none"]:
    """``auto`` to find out, ``none`` for Slurm's own default, or a number."""
    if value == "auto":
        return "auto"
    if value == "none":
        return "none"
    return count(value, "--cpus")


def signal_and_lead(value: str, default_lead_s: int) -> tuple[str, int]:
    """``SIG`` or ``SIG@LEAD``: the signal without ``SIG``, and the lead in seconds."""
    match = _SIGNAL.fullmatch(value)
    lead_s = int(match[2]) if match and match[2] else default_lead_s
    if not match or lead_s > _MOST_LEAD_S:
        msg = (
            f"--signal: {shown(value)} is not SIG@LEAD with SIG one of USR1, USR2, TERM, INT, HUP"
            f" and LEAD in seconds, at most {_MOST_LEAD_S}"
        )
        raise ConfigError(msg)
    return match[1], lead_s


def grace(value: str) -> float:
    """Seconds between signal and requeue; the site may allow fewer."""
    seconds = float(value) if re.fullmatch(r"\d+(\.\d+)?", value, re.ASCII) else math.nan
    if not 0 < seconds <= _MOST_GRACE_S:
        msg = f"--grace: {shown(value)} is not a number of seconds above 0, at most {_MOST_GRACE_S}"
        raise ConfigError(msg)
    return seconds


def statuses(value: str) -> str:
    """Exit statuses, divided by commas."""
    if (
        not re.fullmatch(r"\d{1,3}(,\d{1,3})*", value, re.ASCII)
        or max(map(int, value.split(","))) > _MOST_STATUS
    ):
        msg = f"--stops-with: {shown(value)} is not a list of exit statuses from 0 to 255"
        raise ConfigError(msg)
    return value


def time_limit_s(value: str) -> float:
    """Seconds that Slurm will grant for a ``--time`` value, in whole minutes; inf if unlimited."""
    if value.upper() in {"INFINITE", "UNLIMITED"}:
        return math.inf
    seconds = span_s(value)
    if seconds is None:
        msg = f"--time: {shown(value)} is not MINUTES, M:S, H:M:S, DAYS-H, DAYS-H:M or DAYS-H:M:S"
        raise ConfigError(msg)
    # Slurm counts limits in minutes, rounded up; 0 asks for no limit.
    return math.ceil(seconds / 60) * 60.0 if seconds else math.inf


def deadline_s(value: str, now_s: float) -> int:
    """The moment of ``+3h``, ``now+3hours``, ``18:00``, ``Fri 18:00`` or ``2026-12-01T18:00``.

    Times are local; without a date the next such time is meant.

    Args:
        now_s: The present, epoch seconds.

    Returns:
        Epoch seconds, after *now_s* by a year at most.

    Raises:
        ConfigError: It is no such time, has passed, or is farther ahead.
    """
    try:
        at_s = _moment_s(value, now_s)
    except (ValueError, OverflowError):
        msg = (
            f"--by: {shown(value)} is not a time such as +3h, 18:00, 'Fri 18:00' or"
            " 2026-12-01T18:00"
        )
        raise ConfigError(msg) from None
    if not now_s < at_s <= now_s + _LONGEST_AHEAD_S:
        passed = "has passed" if at_s <= now_s else "is more than a year ahead"
        msg = f"--by: {shown(value)} {passed}"
        raise ConfigError(msg)
    return math.ceil(at_s)


def due_by(value: str, now_s: float) -> tuple[int, ValueCurve | None]:
    """``TIME``, or ``TIME=VALUE`` for each of several deadlines, with ``;`` between.

    Returns:
        The deadline, epoch seconds, of several that of the highest value; the values, if there are
        any.

    Raises:
        ConfigError: One of them is wrong, or they do not fit each other.
    """
    if ";" not in value and "=" not in value:
        return deadline_s(value, now_s), None
    steps = list[tuple[float, float]]()
    for word in value.split(";"):
        at, _, worth = word.strip().rpartition("=")
        if not re.fullmatch(r"\d{1,9}(\.\d{1,6})?", worth, re.ASCII):
            msg = (
                f"--by: {shown(word)} is not TIME=VALUE, such as 'Fri 18:00=10'; each of several"
                " deadlines needs a value, a number above 0"
            )
            raise ConfigError(msg)
        steps.append((deadline_s(at, now_s), float(worth)))
    times, values = zip(*sorted(steps), strict=True)
    try:
        return int(times[0]), ValueCurve(times, values)
    except ValueError as err:
        msg = f"--by: {shown(value)}: {err}"
        raise ConfigError(msg) from None


def _moment_s(value: str, now_s: float) -> float:
    if ahead := _AHEAD.fullmatch(value):
        return now_s + int(ahead[1]) * _UNIT_S[ahead[2][:1]]
    clock = _CLOCK.fullmatch(value)
    if clock is None:
        raise ValueError
    date, day = clock[1], clock[2]
    hour, minute, second = (int(part or 0) for part in clock.groups()[2:])
    # Without a zone, so that a day later is the same time on the clock.
    now = datetime.fromtimestamp(now_s)  # noqa: DTZ006
    at = datetime.fromisoformat(date) if date else now
    at = at.replace(hour=hour, minute=minute, second=second, microsecond=0)
    if day:
        at += timedelta(days=(_DAYS.index(day) - at.weekday()) % 7)
    if not date and at <= now:
        at += timedelta(days=7 if day else 1)
    return at.timestamp()

"""Microsoft Philly (ATC'19) as released: cluster_job_log, one JSON list of jobs with attempts.

A job's duration is the sum of its attempts whose start and end are known; its GPUs are those of
the last of them. A job whose last attempt has no end was still running when the log was taken. The
virtual cluster stands for the account.

The list is read object by object. After the first place that is not JSON nothing can be read
with certainty, so the rest is left out and said to be.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from slurm_dl.model.errors import ConfigError
from slurm_dl.model.trace import Ending
from slurm_dl.text import shown
from slurm_dl.traces.builder import BadValue, Gathering, JobLine, Reason
from slurm_dl.traces.field_values import account, job_id, moment_s, name
from slurm_dl.traces.file_lines import MAX_UNPACKED_BYTES, Head, opened

MAX_OBJECT: Final = 1 << 20  # Characters of one job; the longest of the release has some thousands
_CHUNK: Final = 1 << 22
_BETWEEN: Final = re.compile(r"[\s,]*")
_ENDINGS: Final = {
    "Pass": Ending.COMPLETED,
    "Killed": Ending.CANCELLED,
    "Failed": Ending.FAILED,
}


@dataclass(frozen=True, slots=True)
class PhillyJsonFormat:
    """The list of jobs of the original release."""

    name: str = "philly-json"
    about: str = "msr-fiddle/philly-traces cluster_job_log: a JSON list of jobs with attempts"

    def recognizes(self, head: Head) -> bool:
        """Whether *head* begins a list of objects with Philly's keys."""
        begins = head.text.lstrip()
        return begins.startswith("[") and '"attempts"' in begins and '"submitted_time"' in begins

    def read(self, path: Path, jobs: Gathering) -> None:
        """Every job of *path* into *jobs*."""
        with opened(path) as stream:
            for line, entry in entries(stream, jobs):
                try:
                    found = _job(entry)
                except BadValue as bad:
                    jobs.leave_out(line, bad)
                else:
                    jobs.add(line, found)


PHILLY_JSON: Final = PhillyJsonFormat()


def entries(
    stream: BinaryIO, jobs: Gathering, before: re.Pattern[str] | None = None
) -> Iterator[tuple[int, object]]:
    """Each member of the list with the line it begins in.

    Args:
        before: What stands before the list, near the beginning of an object that holds it. None:
            the file is the list alone.
    """
    decoder = json.JSONDecoder()
    text = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
    buffer, place, line, read, opens, more = "", 0, 1, 0, True, True
    if before is not None:
        buffer, line = _behind(before, text.decode(stream.read(_CHUNK)))
    while True:
        begin = _BETWEEN.match(buffer, place).end()  # type: ignore[union-attr]
        if opens and buffer[begin : begin + 1] == "[":
            opens, begin = False, begin + 1
        line += buffer.count("\n", place, begin)
        place = begin
        if more and len(buffer) - place < MAX_OBJECT:
            raw = stream.read(_CHUNK)
            more, read = bool(raw), read + len(raw)
            if read > MAX_UNPACKED_BYTES:
                msg = f"{jobs.file}: more than {MAX_UNPACKED_BYTES >> 30} GiB"
                raise ConfigError(msg)
            buffer, place = buffer[place:] + text.decode(raw), 0
            continue
        if buffer[place : place + 1].isspace():
            continue
        if buffer[place : place + 1] in {"", "]"}:
            # Behind a "]" there is nothing, or the file is not what it seems.
            rest = buffer[place + 1 :] + text.decode(stream.read(_CHUNK))
            cut_off = not buffer[place:] and not opens
            if cut_off or (before is None and rest.strip()):
                why = "the list has no end" if cut_off else "there is more behind the list's end"
                jobs.leave_out(line, BadValue(Reason.BROKEN, f"{why}; that is left out"))
            return
        try:
            entry, end = decoder.raw_decode(buffer, place)
        except (ValueError, RecursionError) as err:
            why = f"not JSON from here on ({str(err).split(':')[0]}); the rest is left out"
            jobs.leave_out(line, BadValue(Reason.BROKEN, why))
            return
        yield line, entry
        line += buffer.count("\n", place, end)
        place = end


def _behind(before: re.Pattern[str], buffer: str) -> tuple[str, int]:
    """The text behind *before*, and its line."""
    found = before.search(buffer)
    end = found.end() if found else 0
    return buffer[end:], 1 + buffer.count("\n", 0, end)


def _job(entry: object) -> JobLine:
    """One member of the list as a job."""
    status = _text(entry, "status")
    ending = _ENDINGS.get(status)
    if ending is None:
        raise BadValue(Reason.STATE, f"status is {shown(status)}, not Pass, Killed or Failed")
    submit_s = moment_s(_text(entry, "submitted_time"), "submitted_time")
    duration_s, gpus, running = 0.0, 0, False
    attempts = _list(entry, "attempts")
    for attempt in attempts:
        start_s, end_s = _time(attempt, "start_time"), _time(attempt, "end_time")
        running = start_s is not None and end_s is None
        if start_s is None or end_s is None:
            continue
        if end_s < start_s:
            raise BadValue(Reason.NEGATIVE, "an attempt ends before it starts")
        duration_s += end_s - start_s
        gpus = sum(len(_list(node, "gpus")) for node in _list(attempt, "detail"))
    if running:
        raise BadValue(Reason.NOT_ENDED, "its last attempt has no end")
    if not duration_s:
        raise BadValue(Reason.NEVER_RAN, "no attempt has a start and an end")
    return JobLine(
        job_id=job_id(_text(entry, "jobid")),
        submit_s=submit_s,
        duration_s=duration_s,
        gpus=gpus,
        user=name(_text(entry, "user"), "user"),
        account=account(_text_if_any(entry, "vc")),
        ending=ending,
    )


def _get(entry: object, key: str) -> object:
    if not isinstance(entry, dict):
        msg = f"not an object with {key!r}"
        raise BadValue(Reason.BROKEN, msg)
    return entry.get(key)


def _text(entry: object, key: str) -> str:
    value = _get(entry, key)
    if not isinstance(value, str):
        msg = f"{key!r} is missing or no string"
        raise BadValue(Reason.BROKEN, msg)
    return value


def _text_if_any(entry: object, key: str) -> str:
    value = _get(entry, key)
    return value if isinstance(value, str) else ""


def _list(entry: object, key: str) -> list[object]:
    value = _get(entry, key)
    if not isinstance(value, list):
        msg = f"{key!r} is missing or no list"
        raise BadValue(Reason.BROKEN, msg)
    return value


def _time(attempt: object, key: str) -> float | None:
    """A time of an attempt in seconds; None where the log has null or the word None."""
    value = _get(attempt, key)
    if value is None or value == "None":
        return None
    if not isinstance(value, str):
        msg = f"{key!r} is no string"
        raise BadValue(Reason.BROKEN, msg)
    return moment_s(value, key)

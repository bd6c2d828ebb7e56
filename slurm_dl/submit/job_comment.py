"""The job's comment: what the daemon reads about a job, beside what the user wrote there.

The comment is one JSON object; ours is the key ``slurm_dl``. Other tools keep their own keys in
the same field, so theirs are left as they are.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_dl.job.run_files import read_regular
from slurm_dl.model.contract import Batch, Contract
from slurm_dl.model.errors import ConfigError
from slurm_dl.model.shape import Shape
from slurm_dl.model.value_curve import ValueCurve
from slurm_dl.submit.hints import NO_HINTS, Given
from slurm_dl.submit.option_values import clean_text

KEY = "slurm_dl"
DATA_KEY = "data"
VERSION = 1
TAG = "tag-"
"""The models of jobs that name none begin so."""

_MOST_BYTES = 511
_TAG_DIGITS = 12


def tag(command: Sequence[str], cwd: str) -> str:
    """A name for what *command* trains, the same whenever it is submitted.

    It stands for the words, and the content of the script among them; where there is none, for the
    directory *cwd* as well: elsewhere the same words may start another program.
    """
    script = next((word for word in command if word.endswith((".py", ".sh"))), "")
    try:
        content = read_regular(Path(os.path.realpath(Path(cwd, script))))
    except (OSError, ValueError):
        content = os.fsencode(cwd)
    return TAG + digits(command, content)


def digits(words: Sequence[str], content: bytes) -> str:
    """The 12 hexadecimal digits that stand for *words* and the *content* of a script."""
    each = (hashlib.sha256(os.fsencode(word)).digest() for word in words)
    return hashlib.sha256(b"".join((*each, content))).hexdigest()[:_TAG_DIGITS]


def comment(
    user_comment: str | None,
    *,
    contract: Contract | None,
    model: str | None,
    most_nodes: int | None = None,
    due_s: int | None = None,
    curve: ValueCurve | None = None,
    data_ready: bool = True,
    hints: Given = NO_HINTS,
) -> str:
    """The value of ``--comment``: compact ASCII JSON, less than 512 bytes.

    Args:
        user_comment: The user's own comment: a JSON object keeps its keys, other text goes under
            the key ``comment``.
        contract: How the job may be preempted; None if it may not.
        model: Name of the model's profile.
        most_nodes: The job may lie on so many nodes; None if on as many as it asks for.
        due_s: Its deadline, epoch seconds; None if it has none.
        curve: Its values by several deadlines, of which *due_s* is the first; None: it has none.
        data_ready: Its data is there; False: it holds no GPUs until that is said, see `data_flag`.
        hints: Those in force for it.

    Raises:
        ConfigError: The user's comment has our key, or all of it is too long.
    """
    ours: dict[str, object] = {"v": VERSION}
    if contract is not None:
        grace_s = contract.grace_s
        ours |= {
            "sig": contract.signal,
            "to": contract.target,
            "grace_s": int(grace_s) if grace_s == int(grace_s) else grace_s,
            "by": contract.requeued_by,
        }
    if model is not None:
        ours["model"] = model
    if most_nodes is not None:
        ours["nodes"] = most_nodes
    if due_s is not None:
        ours["due"] = due_s
    if not data_ready:
        ours[DATA_KEY] = 0
    if curve is not None:
        ours["values"] = [[int(at), int(v) if v == int(v) else v] for at, v in curve]
    ours |= hints.claims
    try:
        theirs = {} if user_comment is None else _read(clean_text(user_comment, "--comment"))
        text = json.dumps({KEY: ours, **theirs}, separators=(",", ":"))
    except RecursionError:
        msg = "--comment: the JSON is nested too deeply"
        raise ConfigError(msg) from None
    if KEY in theirs:
        msg = f"--comment: the key {KEY!r} is written by dlsubmit; leave it out"
        raise ConfigError(msg)
    if len(text) > _MOST_BYTES:
        msg = (
            f"--comment: with the job's metadata it has {len(text)} bytes, at most {_MOST_BYTES}"
            f" fit; shorten it by {len(text) - _MOST_BYTES}"
        )
        raise ConfigError(msg)
    return text


def with_more(comment: str, told: Mapping[str, int | str]) -> str:
    """*comment*, with these keys in our part of it, as far as they fit."""
    if not told:
        return comment
    whole = json.loads(comment)
    whole[KEY] |= told
    text = json.dumps(whole, separators=(",", ":"))
    return text if len(text) <= _MOST_BYTES else comment


def with_sizes(
    comment: str, sizes: Sequence[Shape], asked: Shape, batch: Batch, *, in_place: bool = False
) -> str:
    """*comment*, in which the job may have any of *sizes* and has asked for *asked*.

    Raises:
        ConfigError: They do not fit in.
    """
    whole = json.loads(comment)
    whole[KEY] |= {"sizes": ",".join(map(str, sizes)), "asked": str(asked)}
    if batch != "fixed":
        whole[KEY]["batch"] = batch
    if in_place:
        whole[KEY]["in_place"] = 1
    text = json.dumps(whole, separators=(",", ":"))
    if len(text) > _MOST_BYTES:
        msg = (
            f"--sizes: with them the job's comment has {len(text)} bytes, at most {_MOST_BYTES}"
            " fit; name fewer, or shorten --comment"
        )
        raise ConfigError(msg)
    return text


def _read(text: str) -> dict[str, object]:
    """The user's keys; text that is not a JSON object becomes one."""
    try:
        value = json.loads(text)
        # Python reads NaN, Infinity and 1e999, of which JSON can write none.
        json.dumps(value, allow_nan=False)
    except ValueError:
        value = None
    if isinstance(value, dict):
        return {str(key): item for key, item in value.items()}
    return {"comment": text}

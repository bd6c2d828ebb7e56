"""A command with a time limit, in a session of its own that ends with it; the input of scontrol.

A site may wrap Slurm's tools in scripts: where only the wrapper is killed, the tool goes on and
acts later. Every user of a host can read command lines, so scontrol gets comments on its standard
input. Without a command it reads commands line by line, by readline or, where it was built without,
by fgets. Measured on 22.05.8 with readline 8.2; the source is the same from there to 26.11:

- A line break in a value begins a second command, and a carriage return, ^O and ^U lead to one.
- readline obeys control characters (tab completes the name of a file) and, by its release and the
  locale, bytes that are not ASCII: 8.2 drops those that are not UTF-8 in a UTF-8 locale.
- Blanks end a word but between quotes of either kind. Quotes stay in the word as they are, and a
  backslash before one changes nothing.
- fgets takes 4,095 bytes: the rest of a longer line would be a second command.
- A refusal is on standard error, and scontrol ends with status 1. Standard output has the prompt
  and repeats the line.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from slurm_dl.job.child import family

_ROUNDS = 5


def run(
    argv: Sequence[str],
    told: bytes = b"",
    *,
    timeout_s: float,
    feed: Callable[[bytes], None] | None = None,
    errors: str = "replace",
    **how: Any,  # noqa: ANN401 - as Popen's
) -> subprocess.CompletedProcess[str]:
    """Run *argv* to its end, and kill all that it runs where it is late or the caller gives up.

    Args:
        told: Its standard input.
        feed: Takes its standard output while it comes; the result has none then.
        errors: As of ``bytes.decode``, for its standard output: names may hold any bytes.

    Raises:
        subprocess.TimeoutExpired: It did not end within *timeout_s* seconds.
        OSError: It cannot be started.
    """
    with os.fdopen(os.memfd_create("stderr"), "w+b") as said, subprocess.Popen(
        argv,
        stdin=subprocess.PIPE if told else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        # Nobody reads a pipe while standard output is fed on.
        stderr=said if feed else subprocess.PIPE,
        start_new_session=True,
        **how,
    ) as child:
        late = threading.Event()

        def end() -> None:
            late.set()
            kill(child)

        killer = threading.Timer(timeout_s, end)
        # The command of a thread that nobody waits for does not hold up the end of the program.
        killer.daemon = True
        killer.start()
        try:
            while feed and child.stdout and (chunk := child.stdout.read(2**18)):
                feed(chunk)
            # A daemon that the tool has started may hold the pipes even then.
            out, err = child.communicate(told, timeout_s + 1)
            said.seek(0)
            err = err or said.read()
        except BaseException:
            kill(child)
            raise
        finally:
            killer.cancel()
            # No thread is left when the next command is forked.
            killer.join()
    if late.is_set():
        raise subprocess.TimeoutExpired(argv, timeout_s)
    texts = out.decode("utf-8", errors), err.decode("utf-8", "replace")
    return subprocess.CompletedProcess(argv, child.returncode, *texts)


def kill(child: subprocess.Popen[bytes]) -> None:
    """Kill the session that *child* was started as leader of, and what has left it for another."""
    if child.returncode is not None:  # Its number may be another's.
        return
    found: set[int] = set()
    # What is stopped starts nothing more, and stays the parent by which the rest is found.
    for _ in range(_ROUNDS):
        if not (new := family(child.pid) - found):
            break
        found |= new
        _signal(os.kill, new, signal.SIGSTOP)
    _signal(os.kill, found, signal.SIGKILL)
    # Some of it may be hidden in /proc.
    _signal(os.killpg, {child.pid}, signal.SIGKILL)


def _signal(send: Callable[[int, int], None], to: Iterable[int], signum: int) -> None:
    for number in to:
        # It has ended, or has become another user.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(number, signum)


_COMMENT = "Comment="
"""The only setting with what users wrote. The others have ids, numbers, names of nodes and of
accounts; a list of nodes may be longer than a line."""

_LONGEST_LINE = 4094

_WORD = re.compile(r'[!#-&(-~](?:[!#-&(-~]|"[ !#-&(-~]*")*')
"""Printable ASCII without single quotes, blanks between double quotes only."""

_ESCAPE = re.compile(r"\\.|['\x7f]")


def arguments_and_input(args: Sequence[str]) -> tuple[Sequence[str], bytes]:
    """With which arguments and standard input scontrol does what *args* say.

    Raises:
        ValueError: They cannot be written there.
    """
    if not any(word.startswith(_COMMENT) for word in args):
        return args, b""
    given = [word.partition(_COMMENT) for word in args]
    words = [before + key + (one_word(value) if key else "") for before, key, value in given]
    line = " ".join(words)
    if not all(map(_WORD.fullmatch, words)) or len(line) > _LONGEST_LINE:
        msg = "a value is too long for standard input, or has characters that scontrol would obey"
        raise ValueError(msg)
    return (), f"{line}\n".encode()


def one_word(text: str) -> str:
    r"""*text*, which is JSON, with the same value and spelled as scontrol reads one word.

    Characters that it would obey are written as ``\u0027``, and bytes that are not UTF-8 like the
    surrogates that stand for them.
    """
    compact = json.dumps(json.loads(text), separators=(",", ":"))
    return _ESCAPE.sub(
        lambda m: f"\\u{ord(m[0][-1]):04x}" if m[0][-1] in "\"'\x7f" else m[0], compact
    )

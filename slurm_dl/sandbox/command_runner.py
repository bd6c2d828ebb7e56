"""Commands against a sandbox, and conditions to wait for, each with a deadline.

All that watches a real daemon polls through `eventually`, so that no wait is endless and each error
names the condition.
"""

from __future__ import annotations

import os
import pwd
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from slurm_dl.job import tool_process
from slurm_dl.model.errors import ClusterError
from slurm_dl.sandbox import layout as layouts

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run(
    argv: Sequence[str],
    timeout_s: float,
    *,
    check: bool,
    user: str | None,
    stdin: str,
    cwd: str | os.PathLike[str],
    env: Mapping[str, str],
) -> subprocess.CompletedProcess[str]:
    """Run *argv* to its end; :meth:`slurm_dl.sandbox.Sandbox.run` says what each argument means."""
    account = pwd.getpwnam(user) if user is not None else pwd.getpwuid(os.geteuid())
    clean = {
        "PATH": PATH,
        "LANG": "C.UTF-8",
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        # Slurm prints local times; a caller with TZ set expects its own.
        **({"TZ": os.environ["TZ"]} if "TZ" in os.environ else {}),
        **env,
    }
    program = argv[0] if "/" in argv[0] else layouts.program(argv[0])
    # Arguments can hold a job's name, and that any control character.
    words = ascii(shlex.join(argv))
    try:
        done = tool_process.run(
            [program, *argv[1:]],
            stdin.encode(),
            timeout_s=timeout_s,
            cwd=cwd,
            env=clean,
            user=None if user is None else account.pw_uid,
            group=None if user is None else account.pw_gid,
            extra_groups=(
                None if user is None else os.getgrouplist(account.pw_name, account.pw_gid)
            ),
        )
    except subprocess.TimeoutExpired as err:
        message = f"{words} did not end within {timeout_s:g} s"
        raise ClusterError(message) from err
    if check and done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        message = f"{words} ended with status {done.returncode}: {said}"
        raise ClusterError(message)
    return done


T = TypeVar("T")


class DeadlinePassedError(ClusterError):
    """What was waited for did not come in time."""


def eventually(
    predicate: Callable[[], T],
    within_s: float = 30.0,
    every_s: float = 0.2,
    *,
    what: str = "",
) -> T:
    """Call *predicate* until it returns something true, and return that.

    A predicate that fails with an ``AssertionError`` or a ``ClusterError`` is asked again.

    Args:
        predicate: Asked at least once, also when *within_s* is 0.
        within_s: Seconds until the deadline.
        every_s: Seconds between two questions.
        what: What is waited for, for the message; by default the predicate's name.

    Raises:
        DeadlinePassedError: With the last answer or the last error.
    """
    deadline_s = time.monotonic() + within_s
    while True:
        error: Exception | None = None
        answer: T | None = None
        try:
            answer = predicate()
        except (AssertionError, ClusterError) as err:
            error = err
        if error is None and answer:
            return answer
        if time.monotonic() >= deadline_s:
            break
        time.sleep(every_s)
    name = what or getattr(predicate, "__qualname__", repr(predicate))
    last = f"last error: {error}" if error is not None else f"last answer: {answer!r}"
    message = f"waited {within_s:g} s for {name}; {last}"
    raise DeadlinePassedError(message) from error

"""A user who submits and cancels odd arrays all the time, to make the daemon's polls fail."""

from __future__ import annotations

import itertools
import re
import threading
from typing import Final

from slurm_dl.model.errors import ClusterError
from tools.chaos.site import Site

USER: Final = "nobody"
_EVERY_S: Final = 1.0
# Held or started at once, cancelled whole or in part: they change between two answers of squeue.
_ARRAYS: Final = (
    (("--hold", "--array=0-98:2"), ""),
    (("--array=1-9,11-39:2",), ""),
    (("--hold", "--array=0-60:3%2"), "_[0-30:3]"),
    (("--array=0-38:2",), "_38"),
)
# What slurmctld, a tool of Slurm or the disk did; any other failed poll is of a record.
_NO_RECORD: Final = re.compile(
    r"failed \(exit|no answer in|cannot be run|squeue lists no job|ledger\.sqlite"
)


class Attacker:
    """Attacks in a thread of its own.

    Attributes:
        arrays: Arrays that Slurm took.
    """

    def __init__(self, site: Site) -> None:
        self.arrays = 0
        self._site = site
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="attacker")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Cancel what is left, and come home."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._site.box.run(["scancel", f"--user={USER}"], check=False)

    def _run(self) -> None:
        for options, part in itertools.cycle(_ARRAYS):
            if self._stop.wait(_EVERY_S):
                return
            submit = ["sbatch", "--parsable", "--output=/dev/null", "--chdir=/", "--mem=1"]
            try:
                with self._site.quiet:
                    done = self._site.box.run([*submit, *options, "--wrap=true"], 15.0, user=USER)
                    array = f"{done.stdout.strip()}{part}"
                    self._site.box.run(["scancel", array], 15.0, user=USER, check=False)
            except ClusterError:
                continue  # Slurm is broken at present.
            self.arrays += 1


def polls_failed(log: str) -> list[str]:
    """The errors in a daemon's *log* of polls that failed by what some job's record says."""
    lines = [line for line in log.splitlines() if "poll failed" in line]
    return [line for line in lines if not _NO_RECORD.search(line)]

"""dlschedd, killed with SIGKILL at one instant of the protocol.

    python faulty_schedd.py POINT dlschedd's options ...

POINT is ``begun:Signal`` (written down, not sent), ``applied:Signal`` (sent, not written down as
sent) or ``settled:Signal`` (written down as sent), and so for every kind of action.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from slurm_dl.cli.dlschedd.command import main
from slurm_dl.ledger.write_ahead import Ledger
from slurm_dl.model.plan import Action
from slurm_dl.slurm.cluster import SlurmCluster


def _dies_after(method: Callable[..., None], when: str, point: str) -> Callable[..., None]:
    def do(self: object, action: Action, *more: float) -> None:
        method(self, action, *more)
        if f"{when}:{type(action).__name__}" == point:
            os.kill(os.getpid(), signal.SIGKILL)

    return do


if __name__ == "__main__":
    POINT = sys.argv.pop(1)
    Ledger.begin = _dies_after(Ledger.begin, "begun", POINT)  # type: ignore[method-assign]
    SlurmCluster.apply = _dies_after(SlurmCluster.apply, "applied", POINT)  # type: ignore[method-assign]
    Ledger.settle = _dies_after(Ledger.settle, "settled", POINT)  # type: ignore[method-assign]
    main()

"""One process of a job: writes down where it is, and meets the others if they are torchrun's.

Run by a test, from each of dlsubmit's templates. What it notes is a file for each process, so that
a process too many is seen as well.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def together() -> int:
    """How many processes torch finds by its variables; each counts one."""
    import torch  # noqa: PLC0415 -- under other launchers there is none
    import torch.distributed as dist  # noqa: PLC0415

    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return int(total)


def main() -> None:
    """Meet the others, then write it down."""
    met = together() if "MASTER_ADDR" in os.environ else 1
    noted = {"env": dict(os.environ), "met": met, "argv": sys.argv[1:]}
    place = Path(os.environ["SLURM_DL_RUN_DIR"])
    (place / f"member.{os.getpid()}.json").write_text(json.dumps(noted))


if __name__ == "__main__":
    main()

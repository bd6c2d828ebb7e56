"""The word of ``dlsubmit --hint p3_ddp=MB`` to PyTorch's DistributedDataParallel.

Buckets of gradients come closest to the slices of P3 (MLSys 2019).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

BUCKET_VARIABLE = "SLURM_DL_DDP_BUCKET_MB"


def ddp_arguments(environ: Mapping[str, str] = os.environ) -> dict[str, int]:
    """Keyword arguments for DistributedDataParallel (``bucket_cap_mb``); empty without the hint.

    Buckets of another size form sums in another order: last digits of results may change.

    Raises:
        ValueError: The variable is no whole number.
    """
    text = environ.get(BUCKET_VARIABLE, "")
    return {"bucket_cap_mb": int(text)} if text else {}

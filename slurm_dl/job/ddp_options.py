"""What ``dlsubmit --hint p3_ddp=MB`` says to PyTorch's DistributedDataParallel.

P3 cuts tensors into slices and sends those first that the next forward pass needs first; in DDP the
buckets of gradients are what comes closest to that.

Source: P3 (MLSys 2019); PyTorch, DistributedDataParallel, ``bucket_cap_mb``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

BUCKET_VARIABLE = "SLURM_DL_DDP_BUCKET_MB"
_MOST_MB = 1024


def ddp_arguments(environ: Mapping[str, str] = os.environ) -> dict[str, int]:
    """Keyword arguments for DistributedDataParallel; empty without the hint.

    Buckets of another size form sums in another order: last digits of results may change.

    Raises:
        ValueError: The variable is no whole number from 1 to 1024.
    """
    text = environ.get(BUCKET_VARIABLE, "")
    if not text:
        return {}
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:5]) <= _MOST_MB):
        msg = f"{BUCKET_VARIABLE} must be a whole number from 1 to {_MOST_MB} (got {text[:20]!r})"
        raise ValueError(msg)
    return {"bucket_cap_mb": int(text)}

"""One of several CPU ranks that train with accumulation, and measure the noise of the gradient.

Run by a test under torchrun. Rank 0 writes, for each step, what was measured beside the gradients
of all passes of all ranks, each computed again by itself on a copy of the model.
"""

from __future__ import annotations

import contextlib
import copy
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slurm_dl.job import elastic

BATCH = 8
MOST_LOCAL = 4
STEPS = 6
RATE = 0.05


def rows_of(step: int, part: elastic.Split, rank: int, one: int) -> torch.Tensor:
    """Samples of a pass; no two passes of a step share any."""
    first = ((step * part.passes + one) * part.gpus + rank) * part.local_batch
    return torch.arange(first, first + part.local_batch)


def main() -> None:
    """Train, and write the steps down."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    made = torch.Generator().manual_seed(1)
    part = elastic.split(BATCH, ranks, most_local=MOST_LOCAL, mode="gpu")
    inputs = torch.randn(STEPS * part.batch, 6, generator=made)
    labels = (inputs @ torch.randn(6, 3, generator=made)).argmax(1)
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    model = DistributedDataParallel(layers)
    optimiser = torch.optim.SGD(layers.parameters(), lr=RATE)
    noise = elastic.GradientNoise(layers.parameters(), smoothing=0.5)
    noted = []
    for step in range(STEPS):
        before = copy.deepcopy(layers).double()
        optimiser.zero_grad()
        for one in range(part.passes):
            last = one == part.passes - 1
            rows = rows_of(step, part, rank, one)
            with contextlib.nullcontext() if last else model.no_sync():
                loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
                (loss / part.passes).backward()
        noise.measure(part, dist.all_reduce)
        gain = elastic.adascale(part.batch / BATCH, noise.var / BATCH, noise.sqr)
        for group in optimiser.param_groups:
            group["lr"] = RATE * gain
        optimiser.step()
        gradients = []
        for rows in (rows_of(step, part, r, p) for r in range(ranks) for p in range(part.passes)):
            loss = nn.functional.cross_entropy(before(inputs[rows].double()), labels[rows])
            found = torch.autograd.grad(loss, list(before.parameters()))
            gradients.append(torch.cat([g.flatten() for g in found]).tolist())
        moved = [
            ((old - new.double()) / (RATE * gain)).flatten()
            for old, new in zip(before.parameters(), layers.parameters(), strict=True)
        ]
        noted.append(
            {
                "part": list(part),
                "sqr": noise.sqr,
                "var": noise.var,
                "rate": optimiser.param_groups[0]["lr"],
                "moved": torch.cat(moved).tolist(),
                "gradients": gradients,
            }
        )
    if rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(noted))
    dist.barrier()
    time.sleep(0.5)  # gloo's thread frees its last tensors: PyTorch 2.13 aborts if it cannot
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

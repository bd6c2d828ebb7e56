"""A torchrun training that may go on with another number of processes after each stop.

    dlsubmit --gpus 1 --sizes 1,2,2x2 --launcher torchrun -- examples/train_elastic.py

The place in the data is the number of samples seen. The next batch are those that follow in the
order of the epoch, and the order depends on the epoch alone; each rank takes its share. So a step
is the same in every size. Each rank logs the samples of each step, in ``seen.RANK.jsonl``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from loss_log import append_line
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slurm_dl import job

SAMPLES = 4096
BATCH = 32
"""Samples of a step, of all ranks together."""
SIZE = 16
CLASSES = 4


def main() -> None:
    """Train, from the beginning or from the last checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--step-s", type=float, default=0.0, help="pause per step, seconds")
    parser.add_argument("--until", type=Path, metavar="FILE", help="no pause once it exists")
    options = parser.parse_args()

    job.install()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # nccl on GPUs
    rank, ranks = dist.get_rank(), dist.get_world_size()
    directory = job.run_dir() or Path.cwd()

    made = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, SIZE, generator=made)
    noise = 0.5 * torch.randn(SAMPLES, CLASSES, generator=made)
    labels = (inputs @ torch.randn(SIZE, CLASSES, generator=made) + noise).argmax(1)
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(SIZE, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    model = DistributedDataParallel(layers)
    optimiser = torch.optim.SGD(layers.parameters(), lr=0.05, momentum=0.9)

    def save(path: Path) -> None:
        torch.save({"layers": layers.state_dict(), "optimiser": optimiser.state_dict()}, path)

    def load(path: Path) -> None:
        content = torch.load(path, weights_only=True)
        layers.load_state_dict(content["layers"])
        optimiser.load_state_dict(content["optimiser"])

    for seen in job.loop(range(0, options.epochs * SAMPLES, BATCH), save=save, load=load):
        epoch, place = divmod(seen, SAMPLES)
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
        rows = order[place : place + BATCH][rank::ranks]
        loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows], reduction="sum")
        optimiser.zero_grad()
        # The gradients of ranks are averaged, so that this is the mean over the batch.
        (loss * ranks / BATCH).backward()
        optimiser.step()
        entry = {"run": job.restart_count(), "ranks": ranks, "seen": seen, "rows": rows.tolist()}
        append_line(directory / f"seen.{rank}.jsonl", entry)
        if options.until is not None and not options.until.exists():
            time.sleep(options.step_s)

    if rank == 0:
        with torch.no_grad():
            loss = nn.functional.cross_entropy(layers(inputs), labels)
        append_line(directory / "end.jsonl", {"loss": loss.item()})
    time.sleep(0.5)  # gloo's thread frees its last tensors: PyTorch 2.13 aborts if it cannot
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

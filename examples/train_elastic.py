"""A torchrun training that may go on with another number of processes after each stop.

    dlsubmit --gpus 1 --sizes 1,2,2x2 --launcher torchrun -- examples/train_elastic.py

The place in the data is the number of samples seen. The next batch are those that follow in the
order of the epoch, and the order depends on the epoch alone; each rank takes its share. So a step
is the same in every size. Each rank logs the samples of each step, in ``seen.RANK.jsonl``.

With ``--adapt`` the batch may grow, at each start and each epoch, up to the noise scale of the
gradient; the learning rate follows, and the scheduler is told how long steps take:

    dlsubmit --batch adapt --sizes 1,2,2x2 --launcher torchrun -- examples/train_elastic.py --adapt
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from loss_log import append_line
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slurm_dl import job
from slurm_dl.job import elastic

SAMPLES = 4096
BATCH = 32
"""Samples of a step, of all ranks together; with ``--adapt`` the fewest."""
MOST_LOCAL, MOST = 32, 512
"""Most samples of a rank in one pass, and of a step."""
RATE = 0.05
SIZE = 16
CLASSES = 4


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Make all samples and their labels, the same on each rank."""
    made = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, SIZE, generator=made)
    noise = 0.5 * torch.randn(SAMPLES, CLASSES, generator=made)
    return inputs, (inputs @ torch.randn(SIZE, CLASSES, generator=made) + noise).argmax(1)


class Training:
    """The model, and one step of it."""

    def __init__(self, *, measures: bool) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.inputs, self.labels = data()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(SIZE, 32), nn.ReLU(), nn.Linear(32, CLASSES))
        self.model = DistributedDataParallel(self.layers)
        self.optimiser = torch.optim.SGD(self.layers.parameters(), lr=RATE, momentum=0.9)
        self.noise = elastic.GradientNoise(self.layers.parameters() if measures else ())
        self.seen = self.steps = 0

    def save(self, path: Path) -> None:
        """Write all that the next step depends on."""
        state = {"layers": self.layers.state_dict(), "optimiser": self.optimiser.state_dict()}
        place = {"seen": self.seen, "steps": self.steps, "noise": self.noise.state()}
        torch.save({**state, **place}, path)

    def load(self, path: Path) -> None:
        """Go on from there."""
        content = torch.load(path, weights_only=True)
        self.layers.load_state_dict(content["layers"])
        self.optimiser.load_state_dict(content["optimiser"])
        self.seen, self.steps = content["seen"], content["steps"]
        self.noise.load(content["noise"])

    def step(self, seen: int, part: elastic.Split) -> list[int]:
        """Take one step on the samples from *seen* on; those of this rank."""
        epoch, place = divmod(seen, SAMPLES)
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
        batch = order[place : place + part.batch]  # fewer at the end of an epoch
        rows = batch[self.rank :: self.ranks]
        self.optimiser.zero_grad()
        for one in range(part.passes):
            last = one == part.passes - 1
            some = rows[one :: part.passes]
            with contextlib.nullcontext() if last else self.model.no_sync():
                output = self.model(self.inputs[some])
                loss = nn.functional.cross_entropy(output, self.labels[some], reduction="sum")
                # The gradients of ranks are averaged, so that this is the mean over the batch.
                (loss * self.ranks / len(batch)).backward()
        if len(batch) == part.batch:
            self.noise.measure(part, dist.all_reduce)
        self.optimiser.step()
        self.seen, self.steps = seen + len(batch), self.steps + 1
        return rows.tolist()


def adapted(training: Training, directory: Path, total: int) -> Iterator[tuple[int, elastic.Split]]:
    """Give the place and the size of each step, as the noise and the number of ranks have it."""
    if path := job.resume_from():
        training.load(path)
    part = None
    while training.seen < total:
        if part is None or training.seen % SAMPLES == 0:
            noise, limits = training.noise, {"most_local": MOST_LOCAL, "most": MOST}
            part = elastic.split(BATCH, training.ranks, noise=noise.scale, **limits)
            factor = elastic.adascale(part.batch / BATCH, noise.var / BATCH, noise.sqr)
            training.optimiser.param_groups[0]["lr"] = RATE * factor
        yield training.seen, part
        # The share of all steps that is done is that of all samples.
        steps = training.steps * total // training.seen
        job.report(training.steps, steps, part=part, noise=training.noise.scale)
        asked = torch.tensor([int(job.should_checkpoint())])
        dist.all_reduce(asked, dist.ReduceOp.MAX)
        if asked.item() and training.seen < total:
            if training.rank == 0:
                path = directory / "adapted"
                training.save(directory / "adapted.part")
                (directory / "adapted.part").replace(path)
                job.checkpoint_saved(path, step=training.steps)
            dist.barrier()
            job.exit_for_requeue()


def main() -> None:
    """Train, from the beginning or from the last checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--step-s", type=float, default=0.0, help="pause per step, seconds")
    parser.add_argument("--until", type=Path, metavar="FILE", help="no pause once it exists")
    parser.add_argument("--adapt", action="store_true", help="let the batch grow")
    options = parser.parse_args()

    job.install()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # nccl on GPUs
    directory = job.run_dir() or Path.cwd()
    training = Training(measures=options.adapt)
    rank, ranks, total = training.rank, training.ranks, options.epochs * SAMPLES
    if options.adapt:
        places = adapted(training, directory, total)
    else:
        part = elastic.split(BATCH, ranks, most_local=MOST_LOCAL, mode="fixed")
        steps = job.loop(range(0, total, BATCH), save=training.save, load=training.load)
        places = ((seen, part) for seen in steps)
    for seen, part in places:
        rows = training.step(seen, part)
        entry = {"run": job.restart_count(), "ranks": ranks, "seen": seen, "rows": rows}
        append_line(directory / f"seen.{rank}.jsonl", entry)
        if options.until is not None and not options.until.exists():
            time.sleep(options.step_s)

    if rank == 0:
        with torch.no_grad():
            loss = nn.functional.cross_entropy(training.layers(training.inputs), training.labels)
        append_line(directory / "end.jsonl", {"loss": loss.item()})
    time.sleep(0.5)  # gloo's thread frees its last tensors: PyTorch 2.13 aborts if it cannot
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

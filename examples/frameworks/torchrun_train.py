"""Distributed training under torchrun: all ranks stop at the same step, rank 0 saves.

    dlsubmit --gpus 2 --launcher torchrun -- examples/frameworks/torchrun_train.py

Outside a job it is an ordinary training.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from steps import Steps, let_gloo_finish
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slurm_dl import job

BATCH = 8
SIZE = 4


def main() -> None:
    """Train, from the beginning or from the last checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="optimiser steps in all")
    parser.add_argument("--step-s", type=float, default=0.0, help="pause per step, seconds")
    options = parser.parse_args()

    job.install()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # nccl on GPUs
    rank = dist.get_rank()
    directory = job.run_dir() or Path.cwd()

    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Linear(SIZE, 1))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(2 + rank)
    step = 0
    checkpoint = job.resume_from()
    if checkpoint is not None:
        content = torch.load(checkpoint, weights_only=True)
        step = content["step"]
        model.load_state_dict(content["model"])
        optimiser.load_state_dict(content["optimiser"])
        data.set_state(content["data"][rank])

    steps = Steps(directory, options.step_s, rank)
    while step < options.steps:
        inputs = torch.randn(BATCH, SIZE, generator=data)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        step += 1
        steps.done(step, loss.item())
        job.report(step, options.steps, loss=loss.item())  # rank 0 alone does

        # Ranks see the request some steps apart: rank 0 decides for all.
        flag = torch.tensor([job.should_checkpoint()], dtype=torch.uint8)
        dist.broadcast(flag, src=0)
        if flag and step < options.steps:
            states: list[torch.Tensor] = [torch.empty(0)] * dist.get_world_size()
            dist.all_gather_object(states, data.get_state())
            if rank == 0:
                path = directory / f"step-{step}.pt"
                scratch = path.with_suffix(".tmp")
                content = {
                    "step": step,
                    "model": model.state_dict(),
                    "optimiser": optimiser.state_dict(),
                    "data": states,
                }
                torch.save(content, scratch)
                scratch.replace(path)
                job.checkpoint_saved(path, step=step)
            dist.barrier()  # nobody leaves before it is saved
            let_gloo_finish()
            dist.destroy_process_group()
            job.exit_for_requeue()
    let_gloo_finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

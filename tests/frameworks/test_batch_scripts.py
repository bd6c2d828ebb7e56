"""Batch scripts and trainings that were written for sbatch alone, submitted as they are."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.torch,
    pytest.mark.full("trains with real frameworks"),
    pytest.mark.timeout(600),
]

Lab = Any
"""The class Frameworks in conftest.py, which cannot be imported."""

STEPS = 40

NOTE = """
import json, os, sys, time
def note(step, rank=0):
    entry = {"step": step, "loss": 0.0, "run": int(os.environ.get("SLURM_RESTART_COUNT", 0))}
    with open(f"loss.{rank}.jsonl" if rank else "loss.jsonl", "a") as log:
        log.write(json.dumps(entry) + "\\n")
    time.sleep(0.2)
"""

DDP = f"""{NOTE}
import signal
import torch, torch.distributed as dist
asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
step = 0
if os.path.exists("saved.pt"):
    saved = torch.load("saved.pt")
    step = saved["step"]
    model.load_state_dict(saved["model"])
while step < {STEPS}:
    model(torch.ones(1, 2)).sum().backward()
    step += 1
    note(step, rank)
    flag = torch.tensor([len(asked)])
    dist.all_reduce(flag)
    if flag and rank == 0:
        torch.save({{"step": step, "model": model.state_dict()}}, "saved.pt")
    if flag:
        break
dist.barrier()
time.sleep(0.5)
dist.destroy_process_group()
"""

LIGHTNING = f"""{NOTE}
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, index):
        return self.layer(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
class Noted(Callback):
    def on_train_batch_end(self, trainer, *_):
        note(trainer.global_step)
data = torch.utils.data.DataLoader(torch.ones({2 * STEPS}, 2), batch_size=2)
trainer = Trainer(
    accelerator="cpu", devices=1, max_steps={STEPS}, callbacks=[Noted()],
    logger=False, enable_progress_bar=False, default_root_dir=os.getcwd(),
)
trainer.fit(Model(), data)
"""

SCRIPTS = {
    # Both nodes of a sandbox are this host, so each torchrun is told its rank.
    "torchrun": """#!/bin/bash
#SBATCH --job-name=ddp --nodes=2 --gpus-per-node=1 --ntasks-per-node=1
#SBATCH --time=20 --output=%x-%j.out
export MASTER_ADDR=127.0.0.1 MASTER_PORT=PORT
srun bash -c 'torchrun --nnodes=2 --nproc-per-node=1 --node-rank=$SLURM_PROCID \\
    --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT train.py'
echo "srun ended with $?"
""",
    "lightning": """#!/bin/bash
#SBATCH --job-name=lightning --nodes=1 --gres=gpu:1 --ntasks-per-node=1
#SBATCH --time=20 --signal=SIGUSR1@90 --output=%x-%j.out
srun python train.py
""",
}


@pytest.mark.parametrize(
    ("name", "training", "ranks"), [("torchrun", DDP, 2), ("lightning", LIGHTNING, 1)]
)
def test_a_script_written_for_sbatch_loses_no_step(
    lab: Lab, name: str, training: str, ranks: int
) -> None:
    """Signalled as the daemon does; torchrun is requeued for it, Lightning requeues itself."""
    lab.needs(*(("lightning",) if name == "lightning" else ("torch",)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (lab.home / "train.py").write_text(training)
    (lab.home / "job.sh").write_text(SCRIPTS[name].replace("PORT", port))
    dlsubmit = str(Path(sys.executable).parent / "dlsubmit")
    job = lab.trained(lab.run(dlsubmit, "--parsable", "job.sh").strip(), lab.home)
    job.until_trains(0)
    if name == "torchrun":
        job.preempt(0)
    else:
        job.signal()
    job.until_trains(1)
    job.until_completed()

    for losses in job.by_rank(ranks):
        first, second = ([e["step"] for e in losses if e["run"] == run] for run in (0, 1))
        # Lightning's own handler saves in the middle of a step, which is done again.
        again = 1 if name == "lightning" else 0
        assert first == list(range(1, len(first) + 1))
        assert second == list(range(second[0], STEPS + 1))
        assert len(first) + 1 - again <= second[0] <= len(first) + 1

"""dlsubmit: a few words from the user, a batch script and sbatch's arguments from us.

command line -> `sbatch_options` (divide) -> `request` (validate) -> `shape`, `spread` or `half`
(nodes and GPUs) -> `extras` (CPUs, memory, switches) -> `script` (template, arguments) ->
`slurm_calls` (sbatch). Only the command line, `slurm_calls` and `site` touch the world.
"""

from slurm_dl.apps.submit.command import main

__all__ = ["main"]

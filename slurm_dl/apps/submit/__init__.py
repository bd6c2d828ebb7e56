"""dlsubmit: a few words from the user, a batch script and sbatch's arguments from us.

command line -> `sbatch_options` (divide) -> `request` (validate) -> `shape` (nodes x GPUs) ->
`script` (template, arguments) -> `slurm_calls` (sbatch). Only the first and the last touch the
world.
"""

from slurm_dl.apps.submit.command import main

__all__ = ["main"]

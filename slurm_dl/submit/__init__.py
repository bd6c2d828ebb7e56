"""dlsubmit: a few words from the user, a batch script and sbatch's arguments from us.

command line -> `sbatch_options` (divide) -> `job_request` (validate) -> `job_shape`, `node_range`
or `half_gpu` (nodes and GPUs) -> `job_extras` (CPUs, memory, switches) -> `batch_script` (template,
arguments) -> sbatch. Only the command line, `slurm_calls` and `model_profile` touch the world.
"""

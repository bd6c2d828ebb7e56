"""The same deep-learning workload twice on a private Slurm: without slurm_dl and with it."""

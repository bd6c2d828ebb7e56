"""Reading Slurm: the output of its tools as columns."""

"""Where waiting jobs should go, and what Slurm is told of it."""

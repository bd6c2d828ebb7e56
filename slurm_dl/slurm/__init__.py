"""Slurm through its own command-line tools: reading the queue, acting on it."""

"""Slurm's own accounting as a trace."""

"""slurm_dl: a deep-learning cluster manager on a stock Slurm."""

__version__ = "0.1.0"

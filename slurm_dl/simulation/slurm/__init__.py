"""A Slurm in simulated time, with what a real one costs: polls, passes, launches, saves, holds."""

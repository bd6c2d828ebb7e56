"""Slurm's accounting: runs of jobs, and a site's history."""

"""A fault campaign on a private Slurm, and the checker that judges it by Slurm's own records."""

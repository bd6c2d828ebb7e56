"""Writing to Slurm: actions, reservations, and giving everything back."""

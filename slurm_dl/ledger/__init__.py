"""What we remember and Slurm does not; it is written down before it is done."""

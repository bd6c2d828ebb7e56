"""A small cluster in memory that behaves like Slurm, for tests and model checks."""

"""The queue by pyslurm, in a process of its own."""

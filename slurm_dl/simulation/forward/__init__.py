"""A forward run: the engine decides, Slurm starts jobs and jobs end, from a snapshot on."""

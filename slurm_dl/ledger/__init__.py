"""Stored facts that Slurm does not keep; each action is stored before it is done."""

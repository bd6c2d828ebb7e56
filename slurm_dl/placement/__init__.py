"""Choice of nodes for a job: one file for each published scheme, none of which knows Slurm.

A scheme says on which nodes a job may start now, or where it had better wait and how long. Who
goes first is a policy's business, and how Slurm is told is the engine's.
"""

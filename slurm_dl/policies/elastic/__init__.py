"""Policies that choose how many GPUs each elastic job has."""

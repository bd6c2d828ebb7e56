"""Experiments with the simulator: sweeps, comparisons, what-if, and the search for thresholds."""

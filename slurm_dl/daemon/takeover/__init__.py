"""Several daemons of which one acts: locks, the lease, and taking over."""

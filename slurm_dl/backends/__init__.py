"""The only code that talks to a cluster, real or not, or to a disk."""

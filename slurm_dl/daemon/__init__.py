"""The daemon: its loop, and all that stands around it."""

"""Nodes for waiting jobs, and the writes that send the jobs there."""

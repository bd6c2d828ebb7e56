"""Preemption: victims, hand-overs and their protocol."""

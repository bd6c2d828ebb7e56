"""Frozen data: what is seen, remembered and decided."""

"""Cells of accounts: buddy allocation with guarantees."""

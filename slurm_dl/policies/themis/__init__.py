"""Themis: bids, and the auction that they go to."""

"""The ledger on disk: one SQLite file."""

"""Metrics and tables from finished-job records."""

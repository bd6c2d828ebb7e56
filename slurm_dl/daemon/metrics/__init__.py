"""Metrics of dlschedd for Prometheus, and a small HTTP server for them."""

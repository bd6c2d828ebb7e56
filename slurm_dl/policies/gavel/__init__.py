"""Gavel's policies: linear programs, queues and fairness in levels."""

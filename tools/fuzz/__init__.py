"""Hostile bytes for every parser of outside data: see docs/develop/hostile-input.md.

`targets` lists the parsers. The corpus is replayed by the unit tests without any tool; with atheris
``python -m tools.fuzz NAME`` looks for more, led by coverage.
"""

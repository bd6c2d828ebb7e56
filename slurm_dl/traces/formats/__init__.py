"""The formats of published traces, one module each."""

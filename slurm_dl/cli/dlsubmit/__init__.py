"""``dlsubmit``: its command line."""

"""``dlctl doctor``: is everything fit for dlschedd, and what to do where it is not.

A check is a small function that asks a `Site` for facts; each fact is read when it is first asked
for, and once.
"""

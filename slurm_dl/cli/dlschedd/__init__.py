"""``dlschedd``: the daemon's command line."""

"""``dlqueue``: the queue as the daemon sees it, and why a job is where it is."""

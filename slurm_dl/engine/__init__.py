"""From a snapshot to a plan, and from a plan to what was done. Pure but for what is passed in."""

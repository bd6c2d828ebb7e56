"""``dlctl``: one module for each subcommand, and what they print."""

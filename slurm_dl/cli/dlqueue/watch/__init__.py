"""``dlqueue --watch``: keys to what is shown, what is shown to lines, lines to the terminal."""

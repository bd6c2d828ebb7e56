"""``dlqueue --watch``: a Textual application, or without Textual a table that is drawn again."""

"""What a daemon saw, kept in a file, and decided upon once more."""

"""What dlschedd would have done: kept in shadow mode, and reported by ``dlctl shadow-report``."""

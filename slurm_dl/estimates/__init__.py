"""What can be said of a job beforehand: how long it still runs and how fast, and who says so."""

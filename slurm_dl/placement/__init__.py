"""Where a job should go."""

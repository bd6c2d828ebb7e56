"""A cluster in simulated time, and what runs on it."""

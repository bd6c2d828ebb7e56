"""Plans and past jobs in sentences."""

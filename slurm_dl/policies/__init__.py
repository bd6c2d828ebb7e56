"""What each job deserves; one file for each published system."""

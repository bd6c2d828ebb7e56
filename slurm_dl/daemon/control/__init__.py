"""The control socket: requests, answers, and who may see what."""

"""When a job will start and finish: the engine, run forward from the daemon's last snapshot."""

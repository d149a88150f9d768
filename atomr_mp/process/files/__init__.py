"""Files of a pool: the run directory, logs, the event log."""

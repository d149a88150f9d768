"""Settings, targets, logs, events and tables of the command."""

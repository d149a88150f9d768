"""The command, what it shows, metrics and traces."""

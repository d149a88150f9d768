"""Programs that the supervisor runs as processes of their own beside the workers."""

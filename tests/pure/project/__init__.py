"""The project's own scripts, examples and texts."""

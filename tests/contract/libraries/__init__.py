"""Libraries and programs through a pool."""

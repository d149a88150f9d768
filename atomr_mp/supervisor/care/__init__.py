"""Looks after a running pool: hangs, GPU health, recycling, reloads, metrics."""

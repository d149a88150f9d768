"""What keeps a running pool well: hangs, GPU health, recycling, reloads, metrics."""

"""Shared memory as a client sees it: slabs of the workers that it maps, slabs of its own that they read."""

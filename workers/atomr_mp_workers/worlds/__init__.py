"""Worlds in a worker: the membership of one process in worlds, and the collectives of their actors' methods."""

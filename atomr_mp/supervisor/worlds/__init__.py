"""Worlds: the epochs of their members, and the memory that these share."""

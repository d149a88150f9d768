"""Measurements on a GPU, each with its command in its first lines."""

"""Measurements by themselves, each with its command in its first lines."""

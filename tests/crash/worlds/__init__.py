"""Worlds whose members are killed, stopped, poisoned and replaced."""

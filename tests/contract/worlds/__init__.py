"""Worlds as their users meet them, through a running pool."""

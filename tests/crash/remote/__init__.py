"""Relays, remote clients and networks that fail."""

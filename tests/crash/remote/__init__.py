"""Gateways, remote clients and networks that fail."""

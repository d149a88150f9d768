"""Requests, streams and maps whose workers end."""

"""Sockets and descriptors between processes."""

"""Hostile peers on local and remote sockets."""

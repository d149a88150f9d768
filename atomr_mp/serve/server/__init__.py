"""The server's processes: a parent that owns the listening socket, and front ends that answer."""

"""Edges to the wire: `session` is unix sockets to and in the supervisor, `data` a client's connections to workers."""

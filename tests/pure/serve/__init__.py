"""HTTP without sockets."""

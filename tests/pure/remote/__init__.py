"""Remote clients and the relay, without sockets."""

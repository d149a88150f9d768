"""Remote clients and the gateway, without sockets."""

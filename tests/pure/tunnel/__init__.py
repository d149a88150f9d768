"""The tunnel of remote clients, without sockets."""

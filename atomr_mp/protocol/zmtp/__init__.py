"""ZMTP, the protocol between ZeroMQ sockets, without any input or output."""

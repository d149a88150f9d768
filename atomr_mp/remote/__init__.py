"""What the client's end of a tunnel and the relay share: keys, and the use of libzmq."""

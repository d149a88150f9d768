"""Remote clients, and the local contract by `tcp://`."""

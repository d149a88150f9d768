"""The processes of a device: how each is made, its state, how it ended."""

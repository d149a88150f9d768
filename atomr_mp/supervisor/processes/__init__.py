"""The processes of a device: how each is made, what is known of it, how it ended."""

"""Named places at which a test can make a worker fail."""

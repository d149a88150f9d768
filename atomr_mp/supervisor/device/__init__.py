"""The life of one device: its processes, how they start and end, and who takes over."""

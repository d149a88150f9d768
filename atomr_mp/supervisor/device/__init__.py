"""The life of one device: how its processes come and go, and who takes over."""

"""The device's memory as a library."""

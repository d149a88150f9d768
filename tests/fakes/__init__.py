"""Stand-ins of NVIDIA's libraries and of CuPy's arrays, in NumPy."""

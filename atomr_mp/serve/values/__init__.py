"""Values between HTTP and a call: JSON by a method's schema, and raw arrays as `.npy`."""

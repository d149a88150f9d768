"""Kernels of the caller's own."""

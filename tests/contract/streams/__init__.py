"""Streams, steps and async methods."""

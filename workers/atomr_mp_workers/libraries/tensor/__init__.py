"""Tensors with named modes."""

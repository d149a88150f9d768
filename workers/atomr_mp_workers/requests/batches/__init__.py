"""Batched methods: which requests run together, and how."""

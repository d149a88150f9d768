"""Calls, maps, batches and waiting."""

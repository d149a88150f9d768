"""Calls of worlds: their tables, and what a lane does with them."""

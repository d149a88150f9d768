"""Requests that are answered by parts: their steps, their credit, and their ends."""

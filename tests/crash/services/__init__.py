"""Serve and Ray clusters under kills."""

"""Refs, slabs, devices and resident memory."""

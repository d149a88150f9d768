"""Traces of a running pool, as files for Chrome's and Perfetto's viewers.

`rows` makes the events from the records of workers, `events_file` writes them, and `tracer` brings both together.
"""

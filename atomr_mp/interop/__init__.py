"""EDGE: memory of other processes opened as arrays in this one. Imported on demand, by clients and by workers.

`host` maps memfds as NumPy arrays; `dlpack` hands arrays on to other libraries.
"""

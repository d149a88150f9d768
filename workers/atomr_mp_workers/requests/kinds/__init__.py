"""Requests that are more than one run and one answer.

`items` are many of one method in one call; a `stream` is answered by parts, by the table `stream_life`, and goes on
with its `thread_state` on whichever thread runs it. What runs them is in other rooms (`batches`, `streams`).
"""

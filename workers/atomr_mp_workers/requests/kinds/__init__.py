"""Requests that are more than one run and one answer.

`items` are many requests of one method in one call. A `stream` is answered by parts, by the table `stream_life`; its
`thread_state` goes with it to the thread that runs it. The rooms `batches` and `streams` run them.
"""

"""Requests that run elsewhere than on the loop: on streams of the device and on actors' threads.

`in_progress` has them in the order in which they began; `threads` runs those of actors that have threads of their own;
`completions` brings them back to the loop.
"""

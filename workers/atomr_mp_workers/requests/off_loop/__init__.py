"""Requests that run elsewhere than on the loop: on streams of the device and on actors' threads.

`in_progress` has them in the order in which they began; `completions` brings them back to the loop. A `runner` runs the
requests of one actor: `threads` on threads of its own, `tasks` as tasks on an `event_loop` of its own.
"""

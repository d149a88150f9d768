"""What a worker shows its supervisor beside its requests, and what it does at the supervisor's order.

`hang_limits` and `stacks` are for the watchdog. `foresight` tells what this process is used for, and makes the same
ready in the next one.
"""

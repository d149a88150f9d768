"""A worker's services for its supervisor beside its requests.

`hang_limits` and `stacks` are for the watchdog. `foresight` notes the methods and memory that this process uses, and
prepares the same in the next process.
"""

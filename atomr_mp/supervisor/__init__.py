"""The supervisor's process: starts, watches, kills and replaces workers; never touches CUDA or ZeroMQ.

A shell around `supervision`: `loop` waits, `device` feeds one device's events to the tables and carries their actions
out, `sessions` talks to clients, `supervisor` ties them together, `plan` is the pool that a supervisor has to run.
`recycler` and `reload` replace healthy workers; `helpers` are processes beside them, such as `exporter`'s.
"""

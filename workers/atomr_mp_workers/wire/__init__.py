"""The channels of a worker: control to the supervisor, data to clients."""

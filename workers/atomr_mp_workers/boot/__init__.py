"""The start of a worker process: forked or started, named, tied to its supervisor."""

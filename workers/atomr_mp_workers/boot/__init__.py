"""How a worker process comes to be: forked or started, named, tied to its supervisor."""

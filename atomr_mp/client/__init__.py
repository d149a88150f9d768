"""The client: a session with the supervisor, and lanes that carry calls to the workers."""

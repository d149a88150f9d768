"""Collectives of a world as steps of programs, and the request that runs programs of worlds that sessions make."""

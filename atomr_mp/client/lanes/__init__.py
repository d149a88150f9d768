"""Lanes: the connections of a client to its workers, and the requests on them."""

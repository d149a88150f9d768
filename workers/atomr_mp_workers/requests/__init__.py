"""Requests in a worker: from their arrival to their reply."""

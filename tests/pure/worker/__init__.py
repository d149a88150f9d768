"""A worker's parts: dispatch, batches, streams, memory, loading."""

"""A client's parts: lanes, replies, refs, memory, maps and their journal."""

"""Connected clients: their sessions, the memory that passes between them and workers, and its reclaim."""

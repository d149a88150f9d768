"""The order of a world's calls in one epoch: what has come, and what runs next on all members.

`files` has the memory that the members share. A process's part in an epoch is a `joined_epoch.JoinedEpoch`: it notes
which parts have come, and reads the ring. Rank 0 writes the ring (`publisher.Publisher`), by what is due: `calls` and
streams that begin, `batches`, steps of streams (`steps`), and steps of streams that run together (`shared_steps`).
"""

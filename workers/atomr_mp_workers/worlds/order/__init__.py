"""The order of a world's calls in one epoch: what has come, and what runs next on all members.

`files` has the memory that the members share. A process's part in an epoch is a `joined_epoch.JoinedEpoch`: it notes
which parts have come, and reads the ring. Rank 0 writes the ring (`publisher.Publisher`), by what is due: `calls` and
streams that begin, `batches`, steps of streams (`steps`), and steps of streams that run together (`shared_steps`).

A member that has noted or ended something rings the loop of rank 0 if the ring says that rank 0 wants to know. It need
not know of a note before it has its own part, which clients send last: with that it looks. An entry wakes the members'
threads (`running.bell_inbox`), which look by themselves, and not their loops.
"""

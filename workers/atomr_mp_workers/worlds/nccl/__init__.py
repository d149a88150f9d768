"""Collectives by NCCL: the second engine of worlds on GPUs.

The ranks meet on the host (`meeting`), by the same pages and signatures as on the host backend. So what differs is
found before anything is enqueued, and NCCL never gets calls that do not go together. Then each rank puts the call on
its stream, through the *gate* of its communicator (`communicator`). A rank that dies behind the meeting leaves the
others' kernels spinning, and NCCL tells nobody. The end of the epoch, which the supervisor says, shuts the gate and has
a thread abort the communicator, which ends these kernels.

A communicator lives as long as an epoch. It is formed in a thread (`forming`), so the process goes on with all else,
and the epoch is joined once it has been used once. Its unique id comes from rank 0, by a page that all processes of
other ranks map (`page`). With spares, standbys form theirs ahead with the members (`spares`).
"""

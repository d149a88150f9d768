"""Clients' system shared memory: inputs that are read from it, and outputs that are written into it.

A region is a part of a client's file in /dev/shm, which the client may shorten, replace or remove at any moment. So no
process here maps it: `files.py` reads and writes it by calls of the system, where a file that has become shorter is a
short read and no signal. Each use opens the file anew and compares it with the registered one; nothing is held open.

`table.py` has the registrations, in memory that all front ends share and that the parent made: a front end's death
loses none, and the parent's death leaves nothing behind. `transfers.py` moves the tensors of one request.
"""

"""The parts of `scripts/soak`.

`soak` starts the pool, the clients and the killing, and compares what is left with what was there before (`census`);
`chaos` is the same with every fault there is, `recycling` the same with workers that end only as the pool plans it.
The seed decides about all disturbances and their times (`disturbances`). `client` is each client's program: it runs
callers, `calls` without refs and `refs` with them, which take their arguments from `contents` and note outcomes in a
`tally`. `caller` is the callers' base, and `recovery` has callers for large results, failed writers and cut
connections. At rest a client uses `everything` once. `clients` is the soak's end of them; both speak in `words`.
`soak_actor` has the actors, and `witness` one more, which tells what keeps a slab mapped in its worker. `stray` writes
over a worker's board, and `condemned` finds quarantined requests that did nothing.
"""

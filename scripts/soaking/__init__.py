"""What `scripts/soak` is made of.

`soak` starts the pool, the clients and the killing, and compares what is left with what was there before (`census`);
`chaos` is the same with every fault there is, `recycling` the same with workers that end only as the pool plans it.
What is done, and when, is known from the seed (`disturbances`). `client` is the program that each client is: it runs
callers, `calls` without refs and `refs` with them, which take what they send from `contents` and note what comes of it
in a `tally`; `caller` is what callers have in common, and `recovery` has those of large results, failed writers and cut
connections. At rest a client uses `everything` once. `clients` is the soak's end of them; both speak in `words`.
`soak_actor` is what is called. `stray` writes over a worker's board, and `condemned` tells whether a request was
quarantined that did nothing.
"""

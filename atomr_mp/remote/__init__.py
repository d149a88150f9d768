"""Clients on other machines: the same pool by `tcp://`, over libzmq with CURVE.

Theory of operation
===================

A remote client speaks to the pool's gateway (`atomr_mp.gateway`), which has a local session for it. A *session* is an
id that is bound to the client's key. It outlives connections: after a cut libzmq connects again, the client says which
calls are unanswered, and each of them is running, answered, or was never seen (`resumption`, pure). So each call has
one outcome, and at most one run.

- `client.RemoteClient` takes the place of a local `Client` in a `Pool`.
- `engine.Engine` owns the socket. The thread that waits for a reply receives for all; while none waits, a thread of its
  own does. `faces` are what replies see of it, in threads and in event loops.
- `session.RemoteSession` is the session: connections, and the outcome of calls after a cut or a gateway's end
  (`gateway_loss`). `sending` puts calls into messages, `answering` takes answers in. `backlog` is the window,
  `deliveries` tells callbacks, futures and listeners, `questions` asks the supervisor, `transfers` moves large calls
  and answers by the bulk connection.
- `releases.SentReleases` gives back leases, and requests whose answers nobody waits for, through any cut.
- `streams.SessionStreams` has its streams: credit, parts as they come, and parts that are missing after a cut. The
  gateway keeps the parts that the client has not acknowledged (`kept_parts`, pure).
- `wire` sets up both ends' sockets and packs messages; `facts` are a call's size, refs and blob.
- `link_life` is the table of a connection's life, pure.
- `bulk.BulkChannel` pulls and serves calls and answers too large for a message, as `blobs`, on a socket and a thread of
  its own.
- `memory.RemoteMemory` serves refs: the gateway holds their leases, their content travels by messages.
- `keys` reads and writes key files.

Only this room and `atomr_mp.gateway` import `zmq`.
"""

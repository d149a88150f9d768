"""Clients on other machines: the same pool by `tcp://`, over libzmq with CURVE.

Theory of operation
===================

A remote client speaks to the pool's gateway (`atomr_mp.gateway`), which has a local session for it. A *session* is an
id that is bound to the client's key. It outlives connections: after a cut libzmq connects anew, the client says which
calls are unanswered, and each of them is running, answered, or was never seen (`resumption`, pure). So there is one
outcome for each call, and at most one run.

- `client.RemoteClient` is what a `Pool` holds, in the place of a local `Client`.
- `engine.Engine` owns the socket. The thread that waits for a reply receives for all; while none waits, a thread of its
  own does. `faces` are what replies see of it, in threads and in event loops.
- `session.RemoteSession` is the session: connections, and what becomes of calls after a cut or a gateway's end
  (`gateway_loss`). `sending` puts calls into messages, `answering` takes what comes back. `backlog` is its window,
  `deliveries` whoever is to hear of it, `questions` what is asked of the supervisor, `transfers` what comes and goes by
  the bulk connection.
- `streams.SessionStreams` is its streams: credit, parts as they come, and what is missing after a cut. The gateway
  keeps what the client has not acknowledged (`kept_parts`, pure).
- `wire` is how both ends set up their sockets and pack a message; `facts` is what the gateway is told beside a call's
  bytes.
- `link_life` is the table of a connection's life, pure.
- `bulk.BulkChannel` pulls and serves what is too large for a message, as `blobs`, on a socket and a thread of its own.
- `memory.RemoteMemory` is what refs see: leases are the gateway's, content travels by messages.
- `keys` reads and writes key files.

Only this room and `atomr_mp.gateway` import `zmq`.
"""

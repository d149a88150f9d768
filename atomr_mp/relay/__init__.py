"""The relay: carries byte streams between remote clients and the pool's unix sockets. It runs if clients are admitted.

Theory of operation
===================

A remote client is an ordinary client whose connections are *channels* (`protocol.tunnel`): one for its session, one for
each connection to a worker, one for memory. Each channel is a connection of its own to the relay's ROUTER, and a unix
socket behind it. The relay has one thread and one loop (`server`), no client, and no NumPy: it decodes nothing of what
lanes carry.

- `router` is the edge to libzmq. Its descriptor tells of changes only, so it is looked at again after each use.
- `channel` has what all channels share: packets, windows, beginning and end. `lane`, `session` and `memory` are the
  kinds. A channel does not read its unix socket while its window is full, so the pool's own back-pressure holds.
- A channel outlives its connections: `channels` finds it by its name, for its client's key only. What the client has
  not received is kept, at most a window. After `grace_s` without a connection it ends, and a session with all it has.
- A session's messages are decoded (`session`), for descriptors of memory stay here, and a client's hello gets its key's
  rights, by which the supervisor judges what it says. Paths stay here too: a client names a device and an incarnation.
- `memory` has what a session's descriptors map. The client copies ranges of it.
"""

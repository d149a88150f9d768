"""A client on another machine: the ordinary `Client`, whose connections are carried by the pool's relay.

Theory of operation
===================

Each connection of the client is a *channel* (`protocol.tunnel`), on a connection of libzmq with CURVE of its own:

- `wire` is the edge to libzmq: one DEALER. libzmq's descriptor tells of changes only, so any use of the socket may take
  its signal. A wire's own descriptor stays readable until everything was received.
- `channel` is one byte stream: packets and windows. A cut of the network does not end it: another wire takes the place
  of the one before, and what has not come is sent again (`protocol.tunnel.channel_life`). A channel of memory is the
  exception: it ends, and what was asked for there is asked for again on another.
- `keeper` is the thread that makes the further wires, while nobody may be using the channel.
- `session` and `lane` have the faces of a local client's connections (`SessionEnd`, `ClientEnd`), `memory_channel`
  copies ranges of memory.
- `memory` is the client's memory, whose slabs lie on the pool's machine. Arguments are copied there before their call
  is sent, those of an event loop in the background (`uploads`); results are copied from there into memory of this
  process.
- `client` puts it together.
"""

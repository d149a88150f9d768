"""Calls of a world: one reply for the parts that go to all of its members. Pure.

Theory of operation
===================

A *gang call* is one call of a method on all ranks of a world. Each rank gets a *part*: an ordinary request
(`gang_reply.GangPart`) that names the call by a `Gang`. The caller gets one `gang_reply.GangReply`. Windows and the
queues of links hold the parts, and never the whole.

- `known_worlds`: the worlds of the pool, as the supervisor last reported them.
- `gang_life`: where a gang call is, as a table. Tests walk all of it.
- `gang_outcome`: what the ends of the parts come to, and whether the whole call is sent again.
- `left_epochs`: the epochs that are over by the word of a member; calls are held until the supervisor says so.
- `arguments`: what all parts are made of, however often the call is sent.

`client.lanes.gangs` acts. A part goes to exactly one process: the member of the epoch in which the call is sent. If the
device has another process by then, the part is not sent, and ends unsent. No part is sent again singly, and none ends
by its deadline here: peers would wait for it in their collectives. When the reply has ended by its deadline, the worker
of rank 0 knows that from its part; when by `cancel`, it is told. It has all members drop the call, unless they may have
begun it. Late answers are taken in, and what the parts hold is given back.

A stream is a gang call whose parts are streams (`gang_stream`, `client.lanes.gang_streams`). Rank 0's part has the
credit of the whole, and passes on what comes; the others only end. When the reader has gone, rank 0 hears of it, and
ends the stream on all ranks. A stream that goes on in another epoch is sent again with what has come.

An epoch that ends as planned is closed first. The members run what rank 0 has published; a part of any other call is
answered `CollectiveAborted` with `planned`, which proves that no rank has begun the call. So the whole call lines up
for the next epoch, whatever its method, and that counts as no replay.
"""

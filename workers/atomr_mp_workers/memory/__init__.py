"""The memory of a device: slabs, buffers, leases, borrows, and memory that outlives the process.

Theory of operation
===================

Memory crosses processes in *slabs*, because opening a handle costs a thousand times as much as finding a place in
memory that is open. A slab belongs to one session or to this process, and only its owner's client may open it. So a
client cannot reach another client's data, and its slabs can be freed when it ends.

A *buffer* is a part of a slab, an `arrays.Block` with an `arrays.DeviceArray` over it. It lives as long as one of these
refers to it: a session's lease, a request, an actor that keeps it, an array over it. Python counts these references;
when the last one has gone, on whichever thread, the block's `blocks.Extent` gives the room back.

When is memory free?
--------------------

Three questions have to be asked, in three places:

1. *Does anybody refer to it?* A session holds leases (`store.Store.lease`), counted by buffer: one for each ref that
   the client has got. The client gives them back in messages; if it dies, `Store.reclaim` gives all back. Results by
   value are leased too, until they were read.
2. *Does submitted work still use it?* Kernels run on after the request that has started them is forgotten. So an
   extent that has come back carries the number of the last work that was started before, and is used again only once
   all work up to that number has ended (`slabs.SlabTable`).
3. *Has a process opened the slab?* An empty slab is freed only when its client has closed it. Up to
   `slabs.CACHED_BYTES` of empty slabs are kept, since making one takes milliseconds.

The quota counts slabs, not buffers, because slabs are what the device has given. A process that takes the place of a
killed one may find the device full of the dead one's memory: `predecessor` waits for its end once.

Who may touch it when
---------------------

`borrows.Borrows` is the rule of Rust for each buffer: many readers or one writer. It orders and never blocks: it
returns the events that a new request has to wait for. A client's *view* cannot be waited for, since its end is unknown,
so a request that conflicts with a view is refused. `content` knows which bytes a failed writer has left
undefined.

Which module does what
----------------------

- `store.Store` knows sessions: their leases and views, and the memory to free when they end.
- `slabs.SlabTable` has the slabs and the room in them; any thread may ask for room.
- `buffers.Buffers` makes arrays, and puts results where their client can open them.
- `ref_opener.RefOpener` turns the refs of requests into arrays. A ref is a client's word: its token, generation, lease
  and extent are checked each time.
- `shares.Shares` keeps what one session has shared until another claims it.
- `resident` adopts weights that the supervisor keeps open, so that they outlive this process.
- `workspaces.Workspaces` has the memory in which libraries work, one piece for each stream.
- `actor_memory` is the interface for actors.
"""

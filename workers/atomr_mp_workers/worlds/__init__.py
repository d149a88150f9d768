"""All worlds of a device's process: its place in each, the order of their calls, and their collectives.

The supervisor offers a world before the process starts (`offers`), and asks it to join and leave the world's epochs
(`membership`, by the table in `member_states`). In an epoch the process notes which parts have come, and begins them in
the order of the ring (`order`), which rank 0 publishes. All calls of a world run on one thread, and wait in a queue
that gives out only the next one of the order (`running`).

Calls of a batched method are noted once their arguments are decoded (`running.batched_method`). Rank 0 chooses which of
them share an entry (`order.batches`), and all members run exactly these. A member that cannot has the epoch end.

A stream's steps are entries of the ring too (`order.steps`): rank 0 publishes one when all ranks have ended the last
and its reader has room, so no rank takes a step that another one does not. Between its steps a stream rests in the
queue. What ends it (its reader, its client's end, a rank's error, a rank that ends first) is an entry as well, by which
all ranks close their generators. Streams that are left over at an epoch's end are closed on the thread, without an
entry.

Streams of a method with steps share entries (`order.shared_steps`): each says which streams take part, who of their
readers has room, and which streams are gone. The members' lines have an outcome for each stream, so rank 0 knows all of
them before it publishes the next step (`running.stepped_method`, `running.steps_run`). At an epoch's end the method
gets a step without live streams, in which all are gone.

`context.world` is an `exchange.world.OwnWorld`. On that thread its collectives go through the meeting of the present
epoch, where the ranks compare their signatures and wait for each other (`exchange`). On GPUs kernels do (`cuda`): each
process makes a mailbox in its device's memory, the supervisor hands it to the others, and they map it before an epoch
needs it (`engines`, `mailboxes`). A collective goes on the stream, and its error comes with the next one or at the end
of the call.

A world that a session makes (`made_places`) has no actors. Its calls are collectives on refs
(`exchange.ref_collectives`), and programs with collectives among their steps (`libraries.world.programs`). A part is
noted once its memory is free (`running.waiting_parts`), so nothing that is published waits for memory.

Only rank 0 knows what is published. So when an epoch ends as planned, rank 0 publishes a last entry, and each process
leaves by itself once it has ended that one: all have run the same calls then. A part that has come too late for the
ring, or comes to a process that has heard of the end, was begun nowhere, and its answer says so (`epoch_ends`).

If one process refuses a part on its arrival, no process runs the call. The same holds for a call that rank 0 finds late
when its turn comes, or hears to be cancelled before it is published (`Publisher.withdraw`): an entry has all members
answer their parts. What is published runs. A process may be unable to decode a part in its turn, as a hostile client
can send one, while the others wait for it in a collective. Their counts of meetings differ then for good, so the epoch
ends; the client's lane does not send the call again. Parts that are lost with a connection end it too, since nobody
knows which these were. A session may lose only so many connections with parts (`hosted.MOST_CUTS`).
"""

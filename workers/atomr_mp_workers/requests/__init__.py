"""Requests in a worker: from their arrival to their reply.

Theory of operation
===================

One thread, the *loop*, decides about all requests. Other threads only run the work that it has given them. So all state
here belongs to the thread that has the loop's turn (`off_loop.completions.Completions.turn`): mostly the loop, and
while it sleeps, an actor's thread that has just finished a request.

A request goes this way:

1. `envelope.Envelope.open` checks its message and makes a `request.Request` of it. One that cannot be run is
   answered at once.
2. It waits in `fair_queue.FairQueue`: by priority, then in turns by session, and for one session in the order of
   arrival. Methods that run in batches or on an actor's threads have queues of their own.
3. `Envelope.begin` checks that it still has to run: its client may have gone, its deadline may have passed, the memory
   it reads may be undefined. Then it notes the request on the board, decodes the arguments, and takes the borrows. From
   here on the request counts as started: the supervisor finds it on the board after a crash.
4. `dispatch.Dispatcher` runs it where its method says: on the loop, on an actor's thread, on a stream, in a batch, or
   alone while nothing else runs.
5. `Envelope.complete` takes it off the board and gives its borrows back. `answers.Answers` puts the reply into its
   client's outbox, which leaves at the end of the loop's turn, or earlier. `raised` turns an exception into the
   caller's error.

What a request waits for
------------------------

Requests that use the same memory run in the order in which they have taken it. A borrow returns the ends of all earlier
ones as events (`Request.after`), and the new request adds its own (`operands`). The place where it runs decides who
waits:

- On a stream, the device waits. Up to `dispatch.AHEAD` requests lie on a stream at a time.
- On an actor's thread, or its event loop, the request stays in the queue, and its session's later requests behind it.
  Those of other sessions overtake it, and so do the further steps of streams, for whose memory it may wait: they have
  a line of their own, which takes turns with the session's new requests. A request that uses memory of other devices
  passes it too (`FairQueue`): writers there wait for that one, and a request here may wait for such a writer.
- On the loop, it is *parked*, and the loop goes on. It is looked at again whenever another request has ended.

A request is parked for its plan too, which a thread makes beside the loop; and the first requests of a library for its
import, after which they are prepared (`Method.resumed`). No stream may wait for such a request: its
work is not on any stream yet, and would be put behind the waiting request. So its event is in `Dispatcher._held`, and
requests that need its memory are parked as well. The same holds for a part of a gang call: it waits for other
processes, and these perhaps for what would lie behind on the stream.

A request may put its work on a stream in several parts, where the data decide what comes next (`request.Next`). When
one has ended, `Dispatcher.take_back` has the next one put there. The request's event stands for the last part only: no
stream can wait for it before, so requests that need its memory are parked.

An end that the device reports is not yet an outcome: `off_loop.completions` brings it back to the loop, which takes the
ends in the order in which the requests had begun. If a request that wrote memory has failed, its readers are refused
(`contents`), even those that have run meanwhile. Therefore a reader whose writer has not been answered waits in
`Dispatcher._early`.

Streams
-------

A request whose method is a generator comes back to the loop many times (`streams`). It takes a turn, is in its thread's
queue, or is aside: without credit, or while a suspect runs alone. While other requests wait for memory, streams go on
beside a waiting suspect: it waits for those requests, and they may wait for a stream.
`streams.open_streams.OpenStreams` carries out the table of its life. Its parts are encoded on its thread and sent by
the loop, at the end of the turn, or during a long step.

Asynchronous methods
--------------------

A coroutine, or an asynchronous generator, is a task on an event loop that its actor has in a thread of its own
(`off_loop.tasks`). For the worker's loop that is one more place off the loop, with one difference: a running request
can be interrupted (`Dispatcher.cancel`). It is given an error to end with (`Request.closing`), and its task is
cancelled. The other requests off the loop are given one, too: a program that their method runs ends by it before its
next condition.

Gang calls
----------

A method of a world's actor runs on all members of the world as one (`gangs`, `worlds`). Its parts wait in the queue of
the world's thread, which gives out only the one whose turn it is by the world's ring. So a part waits for other
processes, and these for it: none is dropped singly. It is not lost with its connection. With its session, by its
deadline or its caller's `Cancel` it goes only where all members agree, by an entry of the ring. If a part is answered
on its arrival, no member runs the call. A stream of a world takes its steps by the ring, whatever its credit says here.

A suspect of any kind waits until what the rings have published has begun and ended here, since other members may be in
it already. Meanwhile the process says in its lines that it is away. Rank 0 of each of its worlds sees that, publishes
nothing more that begins, and says so in the ring (`RingWriter.hold`). From then on no entry is on its way
(`ActorRunner.is_settled`). While the suspect runs, nothing begins.

A part that is a suspect itself waits for its turn by the ring, and then in `isolation.Isolation` until all members say
in their lines that nothing else runs there (`JoinedEpoch.be_quiet`): so it begins on all of them or on none. Who has
said so can keep it, by the rule above, so no member in which it runs waits for one in which something else does. If
that takes too long since others wait for this process, the epoch ends.

A turn of the loop
------------------

A turn runs queued requests for half a millisecond, then looks at all sockets again. So a new client is read soon, and
answers leave in groups. The outboxes are sent before a request that may take long, so that no answer waits for it, or
is lost with it. Batches start after all arrived messages were read, since their requests may belong to them.
"""

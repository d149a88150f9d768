"""Lanes: the connections of a client to its workers, and the requests on them.

Theory of operation
===================

A client calls from any thread and from any number of asyncio loops. Handing a call over to a thread that owns the
sockets would cost more than the call. So there are several *lanes*, and the calling thread or loop drives one of them:

- `event_loop.EventLoopLane`: each loop has its own. Its descriptors are the loop's, and only its thread touches them.
- `threads.ThreadsLane`: all other threads share one. The first thread that waits for a reply becomes the *leader*: it
  polls all descriptors, the session's too, and receives for all. The others wait until it wakes them, with their
  answer or to lead. If only callbacks wait, a background thread waits for them in the same way.

A lane has a *link* to each device (`device_link.DeviceLink`). A link outlives the device's processes: it has a
connection to the current incarnation, perhaps one to the former, which may still answer, and one to a standby, on
which nothing is sent yet. Each connection has its lane's number, or a new one if it replaces a lost connection.

Decisions and actions
---------------------

Two tables decide. Both are pure, and tests walk all of them:

- `client.reply_life`: where a request is. It waits in a queue, is at its worker, is parked until the supervisor has
  judged it, or is over. The table says when credit comes back and when the caller gets the outcome, each once.
- `link_life`: the state of a lane's link to a device. Calls are sent in one state only, `SERVING`; in some they wait,
  in others they are refused. The table says when last answers are taken in, connections closed, and requests given
  their fates.

Calls beyond the window of a device wait in `backlog.Backlog`, if the caller wants that. They have no credit there;
`admission.BacklogAdmission` lets them in when credit has come back, in order for each device.

A third table, `client.worlds.gang_life`, says where a call of a world is. Its parts are requests like any others, but
none of them is sent again by itself, and each goes to one incarnation or to none.

These parts act. Each carries out actions of a table, and feeds it with events:

- `sending.Sender` chooses a device, puts calls together, and sends them.
- `receiving.Receiver` takes answers in.
- `outcomes.Outcomes` carries out the table of replies, and runs callbacks once the lock is free.
- `failover.Failover` carries out the table of links.
- `gangs.Gangs` carries out the table of a world's calls: it sends the parts, and gives the whole its outcome.
- `retry.Retry` decides, by `retry_policy`, about each request that was lost with an incarnation or a connection.

`base.Lane` puts them together; the two kinds of lanes own sockets, threads and timers, and nothing else. What all lanes
of a client share comes in `services.LaneServices`, above all the session with the supervisor (`session.PoolSession`),
which hands its messages on to the client, and the client to the lanes.

The way of most calls is written out by hand, beside the table: `Lane.submit`, `Sender.send`, and the middle of
`Receiver.receive` set the states `WAITING`, `SENT` and `OVER` themselves. An event would cost a microsecond or two of a
hundred and fifty.

Locks and order
---------------

A lane's lock covers all of its links and replies. Nobody waits with it held, and no user's code runs under it. Locks
are taken in this order: the session's, a lane's, the courier's. The supervisor's messages come from the thread that
reads the session: a lane of threads takes them at once, a loop takes them in its next turn, in their order.

A message of the supervisor may be older than an event of a connection, or the other way round. Both tables have rows
for that. News of an incarnation that the lane has let go changes nothing. An end that is reported after its connection
was lost still decides the fates of the requests. On a connection that is carried from another machine the last answers
may come after the report of their worker's end: requests that may have been answered are settled when that connection
has ended (`DeviceLink.awaited`), while the link goes on to the next incarnation. If an answer comes after its request
was taken back, its leases are given back.

When a connection is lost
-------------------------

The end of a connection may be a worker's death. The supervisor will then report which requests had started, and which
are suspects. So no request is failed yet. After ten milliseconds the link connects anew. If the worker admits the new
connection, it lives. The lane tells it which of its answers were lost with the old connection (`Unread`), and repeats
the releases that it has not acknowledged. Then requests that were on the old connection are sent again, or end with
`ConnectionLost`. If attempt after attempt fails, the device is unreachable for this lane, and its calls are refused.

Each answer with leases is read, or named in an `Unread`, or taken back by the worker, which knows at a connection's end
which ones were not sent whole. Nobody receives for a loop that was left. So its lane takes back the requests that wait
for a login, tells the kernel to take nothing further for its connections, and takes in the answers that have arrived.
Then it closes them. A worker may still read arguments of the other requests, so these are kept, see `ClientSlabs`.
"""

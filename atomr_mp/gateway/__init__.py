"""The gateway: lets clients on other machines in, over libzmq with CURVE. A process that the supervisor keeps running.

Theory of operation
===================

For each remote session the gateway has a local one, an ordinary client of the pool in an event loop that all share. So
fair shares, credit, leases and clean-up are the pool's own. Bodies of calls and of answers pass as they are.

- `loop.GatewayLoop` is asyncio's event loop, but calls the readers of sockets at once.
- `server.Gateway` reads the socket and knows which connection is which session.
- `peers.RemotePeer` is one session: its local client and its calls (`remote.resumption`). `leases` has the buffers it
  holds, `uploads` its large arguments on their way, `answers` the answers it keeps until its client has them, `streams`
  the parts that pass through and their credit, `former` the calls that an earlier gateway has taken along.
- `admission.AdmittedKeys` tells libzmq whether a key is admitted (ZAP), and has the rights of each key.
- `bulk.BulkConnections` pulls and serves calls and answers too large for a message.
- `sockets` sets libzmq up, and `probe` tries a random key before any client can: libzmq admits every key if nobody
  answers its question.
- `channel` talks to the supervisor.
- `handover` is the door by which other threads reach the loop. Sessions and sockets refuse any thread but the loop's.

libzmq aborts its process in a state that it does not expect. That ends the gateway, which is started again on the same
listening socket, and never a worker.
"""

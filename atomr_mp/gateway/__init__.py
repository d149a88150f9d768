"""The gateway: lets clients on other machines in, over libzmq with CURVE. A process that the supervisor keeps running.

Theory of operation
===================

For each remote session the gateway has a local one, an ordinary client of the pool in an event loop that all share. So
fair shares, credit, leases and clean-up are the pool's own. Bodies of calls and of answers pass as they are.

- `server.Gateway` reads the socket and knows which connection is which session.
- `peers.RemotePeer` is one session: its local client and its calls (`remote.resumption`). `leases` are what it holds,
  `uploads` its large arguments on their way, `answers` what it keeps until its client has it, `streams` the parts that
  pass through and what is granted for them.
- `admission.AdmittedKeys` answers libzmq's question whether a key is admitted (ZAP), and knows what each key may do.
- `bulk.BulkConnections` pulls and serves what is too large for a message.
- `sockets` sets libzmq up, and `probe` tries a random key before anybody else can: libzmq admits every key if nobody
  answers its question.
- `channel` is the way to the supervisor.

libzmq ends its process where it finds itself in a state that it does not expect. That costs the gateway, which is
started again on the same listening socket, and never a worker.
"""

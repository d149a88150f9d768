"""The messages between processes. Pure: no clock, no socket, no process.

`codec` turns bytes into messages or `ProtocolError`; `session`, `control` and `data` are the messages of the three
channels; `values` is how arguments and results look inside a call; `token` names one incarnation of one device;
`flow` bounds what is under way; `board` is the page of shared memory in which a worker shows what it is doing.
`docs/protocol.md` describes the wire for other languages.
"""

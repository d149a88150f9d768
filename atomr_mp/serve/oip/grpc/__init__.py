"""The Open Inference Protocol over gRPC. Only this room, and nothing else, loads gRPC and Protocol Buffers.

`tables.py` has the messages, `messages.py` makes classes of them, `requests.py` translates, `service.py` answers, and
`server.py` listens.
"""

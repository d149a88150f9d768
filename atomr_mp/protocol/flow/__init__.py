"""Flow control: how large a message may be, and how much may be under way. Pure.

`limits` bounds one call or reply, and the credit of a stream. `flight` counts the requests of a connection;
`stream_credit` the parts of a stream.
"""

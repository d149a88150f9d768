"""The tunnel: byte streams of local clients, carried between machines. What decides is here, and pure.

A *channel* is one byte stream in each direction, on a connection of its own, so that TCP does windows and fairness. It
travels in packets (`packets`). Each end keeps what the other has not acknowledged, up to the channel's window
(`flow`); without room in the window it does not read what it would have to send. `ranges` are the copies of memory on
a memory channel.
"""

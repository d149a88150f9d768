"""The shell around ZMTP that both ends of the data channel share: a connection, and the thread for its pending work.

What is said on a connection is decided by `atomr_mp.protocol.zmtp`; this room moves the bytes. Clients and workers each
add what differs: whom they let in, what they wait for, whose lock it is.
"""

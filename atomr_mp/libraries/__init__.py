"""References to the libraries: typed methods that turn arrays into requests. One library a file.

A library is its reference here, its messages in `atomr_mp.protocol.libraries`, and its actor in
`atomr_mp_workers.libraries`, all under the same name.
"""

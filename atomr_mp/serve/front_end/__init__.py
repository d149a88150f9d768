"""A front end: the process that answers HTTP, by a plan of the parent's (`plan`).

It joins the pool, and answers by `server`: `connection` has a client's bytes, `request` one request and its answer,
`timer` the bounds of both, `middleware` what users put around it all.
"""

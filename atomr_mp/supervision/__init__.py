"""The supervisor's policies. Pure: facts come in, the time among them, and decisions go out.

`lifecycle` is a device's life as a table: what happened, in which state, and the actions;
`directives` maps an error to the supervisor's reaction; `intensity` says how often and how soon a worker is
started again; `recycle` who is replaced although it is well; `tally` sums up the counts of a device's incarnations. The
supervisor feeds them and carries their decisions out.
"""

"""What the supervisor decides by. Pure: facts come in, the time among them, and decisions go out.

`lifecycle` is a device's life as a table: what happened, in which state, and the actions;
`directives` says what an error asks of a supervisor; `intensity` says how often and how soon a worker is
started again; `recycle` who is replaced although it is well; `tally` sums up what a device's incarnations have
done. The supervisor feeds them and carries their decisions out.
"""

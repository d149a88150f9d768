"""What the supervisor decides by. Pure: facts come in, the time among them, and decisions go out.

`lifecycle` is a device's life as a table: what happened, in which state, and what is to be done about it;
`directives` says what an error asks of a supervisor; `intensity` says how often and how soon a worker is
started again. The supervisor feeds them and carries their decisions out.
"""

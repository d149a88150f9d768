"""Sequences of the Open Inference Protocol: requests that one actor's process has to get, one after the other.

`asked.py` reads what a request says of its sequence, and makes the arguments that tell it. `life.py` decides, by the
record of the sequence, whether and where the request may run. `table.py` has the records, in memory that all front ends
share. `turns.py` lets the requests of a sequence run one by one.

A request runs where the one before it has run, in the same incarnation, or not at all. What a front end has not seen
the end of leaves the sequence's state in doubt, and it has to begin anew. The kernel gives back the lock of a front end
that dies, which leaves the record of a running request behind.
"""

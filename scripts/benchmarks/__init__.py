"""What `scripts/bench` is made of.

`scenarios` says what is measured and `metrics` what comes out of it, with the goals; `contestants` lists who is
measured, one file each. `rounds` runs one scenario of one contestant in processes of its own (`one_round`). To add a
peer, write a `contestant.Contestant` and a line in `contestants`.
"""

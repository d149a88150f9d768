"""Everything that `scripts/bench` is made of.

`scenarios` says what is measured and `metrics` what comes out of it, with the goals; `contestants` lists who is
measured, one file each. `rounds` runs one scenario of one contestant in processes of its own (`one_round`). To add a
peer, write a `contestant.Contestant` and a line in `contestants`. `report` puts the numbers into tables, `sizes` says
how much a round measures, and `machine` has the facts about a machine without which figures mean little.

Rooms:

- `subjects`: what the scenarios measure, one module each.
- `peers`: the contestants that others make; `base` and `runtime` are ours.
- `processes`: programs and actors that run in processes of their own meanwhile.
- `standalone`, `gpu`: measurements by themselves, on any machine and on a GPU.
"""

"""The parts of `scripts/fuzz`.

A `target` makes valid inputs, changes them, and checks what the code does with any input. `trees` changes msgpack by
its structure, and `valid` makes messages by their types. `bounds` limits the time and memory of a check, and `running`
runs a target and keeps its finds. `targets` has one file for each part of the code: those that only decode bytes, and
`live`, where a pool's processes hear them.
"""

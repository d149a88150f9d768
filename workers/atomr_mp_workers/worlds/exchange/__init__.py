"""The collectives of a world: `world.OwnWorld` is what a method sees as `context.world`.

In a `meeting.Meeting` the ranks show their `signatures`, compare them, and wait for each other. `collectives` moves the
data, and computes by `elements`. `ref_collectives` does so for clients, on refs.
"""

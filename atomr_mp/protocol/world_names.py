"""Names that users look for on worlds and their programs and that are elsewhere, each with what does the same. Pure."""

from __future__ import annotations

from typing import Final, NoReturn

_OF_ACTORS: Final = (
    "collectives are called in methods of its actors, as `context.world.{name}(…)`; for collectives on refs make a "
    "world of devices, `pool.world([0, 1])`"
)
_NO_ACTORS: Final = (
    "a world that is made of devices has no actors, only collectives on refs and programs; "
    '`pool.world("NAME").{name}(…)` is of a world with actors'
)
_AS_STEPS: Final = (
    "one recording is for all ranks, so it does not know on which it runs; give what differs by rank as `p.refs([…])`"
)

SYNONYMS: Final = {
    **dict.fromkeys(("allreduce", "all_reduce_sum"), "`all_reduce`"),
    **dict.fromkeys(("allgather", "gather"), "`all_gather` gives all ranks the arrays of all"),
    **dict.fromkeys(("alltoall", "scatter"), "`all_to_all` sends part *i* of an array to rank *i*"),
    **dict.fromkeys(("send", "recv", "isend", "irecv", "send_recv"), "`sendrecv`, which all ranks call at once"),
    **dict.fromkeys(("bcast",), "`broadcast`"),
    **dict.fromkeys(("reducescatter",), "`reduce_scatter`"),
}
"""What other libraries call collectives, and what they are called here."""

COLLECTIVES: Final = (
    "all_gather", "all_reduce", "all_to_all", "all_to_all_v", "barrier", "broadcast", "reduce", "reduce_scatter",
    "sendrecv",
)  # fmt: skip

OF_WORLD: Final = {
    **{name: _OF_ACTORS.format(name=name) for name in (*COLLECTIVES, "rank")},
    "program": "a world of devices has programs, `pool.world([0, 1]).program()`, as `context.libraries` has",
    **dict.fromkeys(("map", "amap"), '`pool.{name}("Actor.method", items)` goes through the world'),
    **dict.fromkeys(("close", "stop"), "it lives as long as its pool"),
}
"""What to use in place of what a world with actors lacks."""

OF_MADE_WORLD: Final = {
    **SYNONYMS,
    **{name: _NO_ACTORS.format(name=name) for name in ("actor", "call", "has", "stream", "streams")},
    "actors": 'a world that is made of devices has no actors; `pool.world("NAME")` is a world with actors',
    "rank": "this client is no rank: it gives refs for all of them, `world.devices` by rank",
    "put": "`[pool.device(each).put(array) for each in world.devices]`",
}
"""The same for a world that a client has made of devices."""

OF_STEPS: Final = {
    **SYNONYMS,
    "barrier": "a program needs none: each collective among its steps waits for all ranks",
    "all_to_all_v": "steps have fixed shapes: use `all_to_all`, or `world.all_to_all_v(parts)` between two runs",
    **dict.fromkeys(("rank", "size", "epoch"), _AS_STEPS),
}
"""The same for `p.world`."""


def missing(owner: object, what: str, name: str, instead: dict[str, str]) -> NoReturn:
    """Raise the error for a missing attribute, with what to use instead if that is known.

    Args:
        owner: The object that was asked.
        what: The words for it, such as "a world with actors".
        name: The attribute.
        instead: What to use, by attribute.

    Raises:
        AttributeError: In any case.
    """
    found = instead.get(name)
    text = f"{type(owner).__name__!r} object has no attribute {name!r}" if found is None else ""
    if found is not None:
        text = f"{what} has no `{name}`: {found.format(name=name)}"
    raise AttributeError(text, name=name, obj=owner)

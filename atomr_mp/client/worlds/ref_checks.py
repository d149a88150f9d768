"""What a client can know to be wrong of a collective on refs, before anything is sent. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol.declaration.checks import check_apart
from atomr_mp.protocol.refs import Operand
from atomr_mp.protocol.words import counted, did_you_mean

OPERATORS: Final = ("sum", "prod", "min", "max", "avg")
"""Names of the operators."""


def devices_of(given: Any, count: int) -> list[int]:
    """Return the devices of a new world, by rank.

    Args:
        given: What the caller gives.
        count: How many devices the pool has.

    Raises:
        InvalidRequest: They are no devices of the pool, or one is named twice, or none is.
    """
    if not isinstance(given, Sequence):
        raise errors.InvalidRequest(f"name a world by a text, or give the devices of a new one; got {given!r:.200}")
    for device in given:
        if not _is_whole(device):
            raise errors.InvalidRequest(
                f"devices of a world are given by their indexes, or as `pool.device(index)` of the same pool; got "
                f"{device!r:.100}"
            )
        if not 0 <= device < count:
            raise errors.InvalidRequest(
                f"there is no device {device}: this pool has {counted(count, 'device')}, from 0 to {count - 1}"
            )
    if not given or len(set(given)) < len(given):
        raise errors.InvalidRequest(f"a world has at least one device, and each of them once; got {list(given)!r:.200}")
    return [int(device) for device in given]


def by_rank(given: Any, size: int, what: str) -> list[Any]:
    """Return the arguments for each rank, as a list.

    Raises:
        InvalidRequest: It is no list of as many as there are ranks.
    """
    if isinstance(given, Operand | str | bytes) or not isinstance(given, Sequence):
        raise errors.InvalidRequest(f"give {what} for each rank, in a list; got {type(given).__name__}")
    if len(given) != size:
        raise errors.InvalidRequest(
            f"give {what} for each rank: the world has {counted(size, 'rank')}, and got {len(given)}"
        )
    return list(given)


def refs_of(given: Any, devices: Sequence[int]) -> list[Any]:
    """Return refs by rank, each on its rank's device.

    Raises:
        InvalidRequest: Something is no ref, or there are too many or too few.
        GpuRefWrongDevice: A ref is on another device.
    """
    refs = by_rank(given, len(devices), "a ref")
    for rank, (ref, device) in enumerate(zip(refs, devices, strict=True)):
        _check_ref(ref, rank, device)
    return refs


def check_same(kind: str, refs: Sequence[Any]) -> None:
    """Compare the element types and numbers of elements of all ranks.

    Raises:
        WorldMismatch: They differ.
    """
    first = refs[0]
    for rank, ref in enumerate(refs):
        if ref.dtype != first.dtype or math.prod(ref.shape) != math.prod(first.shape):
            raise errors.WorldMismatch(
                f"rank 0 has {kind} of {math.prod(first.shape)} {first.dtype}, rank {rank} of {math.prod(ref.shape)} "
                f"{ref.dtype}",
                maybe_executed=False,
                rank=0,
                other=rank,
            )


def check_rows(refs: Sequence[Any]) -> None:
    """Compare the element types of refs, and the shapes of their rows.

    Raises:
        InvalidRequest: A ref has no dimension.
        WorldMismatch: They differ.
    """
    first = refs[0]
    for ref in refs:
        if not ref.shape:
            raise errors.InvalidRequest("arrays of all_to_all_v have at least one dimension")
        if ref.dtype != first.dtype or math.prod(ref.shape[1:]) != math.prod(first.shape[1:]):
            raise errors.WorldMismatch(
                f"all_to_all_v has rows of shape {first.shape[1:]} of {first.dtype}, and of shape {ref.shape[1:]} of "
                f"{ref.dtype}",
                maybe_executed=False,
            )


def check_operator(op: Any) -> None:
    """Refuse a name that is not an operator.

    Raises:
        InvalidRequest: There is no such operator.
    """
    if op not in OPERATORS:
        hint = did_you_mean(op, OPERATORS) if isinstance(op, str) else ""
        raise errors.InvalidRequest(f"there is no operator {op!r:.100}{hint}; there are: {', '.join(OPERATORS)}")


def outputs_of(
    out: Any, refs: Sequence[Any], shapes: Sequence[tuple[int, ...] | None], devices: Sequence[int]
) -> list[Any]:
    """Return the outputs by rank; None for ranks without a result.

    Args:
        out: What is given.
        refs: The inputs.
        shapes: The shapes of the results, None for none.
        devices: The devices by rank.

    Raises:
        InvalidRequest: One is no ref, or of another shape or type than the result, or its elements share memory.
        GpuRefWrongDevice: One is on another device.
    """
    outs = by_rank(out, len(devices), "a ref of `out`")
    for rank, (each, ref, shape) in enumerate(zip(outs, refs, shapes, strict=True)):
        if shape is None:
            continue
        _check_ref(each, rank, devices[rank])
        if tuple(each.shape) != tuple(shape) or each.dtype != ref.dtype:
            raise errors.InvalidRequest(
                f"`out` of rank {rank} has shape {tuple(each.shape)} and elements of {each.dtype}, and the result "
                f"has shape {tuple(shape)} and elements of {ref.dtype}"
            )
        check_apart(f"`out` of rank {rank}", each.layout)
    return outs


def factors_by_rank(factor: Any, size: int) -> list[Any]:
    """Return a factor for each rank, None for none.

    Raises:
        InvalidRequest: It is neither a number nor one for each rank.
    """
    if isinstance(factor, list | tuple):
        factors = by_rank(factor, size, "a factor")
        if any(each is None for each in factors):
            raise errors.InvalidRequest("give a factor for all ranks or for none")
        return factors
    return [factor] * size


def rank_of(rank: Any, size: int, name: str) -> int:
    """Return a rank.

    Raises:
        InvalidRequest: There is no such rank.
    """
    if not _is_whole(rank) or not 0 <= rank < size:
        raise errors.InvalidRequest(f"`{name}` is a rank from 0 to {size - 1}; got {rank!r:.100}")
    return int(rank)


def pairs_by_rank(pairs: Any, size: int) -> tuple[list[int | None], list[int | None]]:
    """Return to whom each rank sends and from whom it receives, None for none.

    Raises:
        InvalidRequest: They are no pairs of ranks, or a rank sends or receives twice.
    """
    to: list[int | None] = [None] * size
    from_: list[int | None] = [None] * size
    if not isinstance(pairs, Iterable):
        raise errors.InvalidRequest(f"`pairs` are (from, to); got {pairs!r:.100}")
    for pair in pairs:
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise errors.InvalidRequest(f"`pairs` are (from, to); got {pair!r:.100}")
        if not all(_is_whole(rank) and 0 <= rank < size for rank in pair):
            raise errors.InvalidRequest(f"`pairs` are (from, to), of ranks from 0 to {size - 1}; got {pair!r:.100}")
        sender, receiver = map(int, pair)
        if to[sender] is not None or from_[receiver] is not None:
            twice = f"rank {sender} sends" if to[sender] is not None else f"rank {receiver} receives"
            raise errors.InvalidRequest(f"{twice} twice; make another call for the second array")
        to[sender], from_[receiver] = receiver, sender
    return to, from_


def _is_whole(value: Any) -> bool:
    """Return whether a value is a whole number, of Python's or NumPy's."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_ref(ref: Any, rank: int, device: int) -> None:
    if not (isinstance(ref, Operand) and hasattr(ref, "lease")):
        raise errors.InvalidRequest(
            f"rank {rank} has {type(ref).__name__}, and a collective takes refs (`device.put(array)`)"
        )
    at: int = getattr(ref, "device")  # noqa: B009 - of a `GpuRef`, which only clients with NumPy import
    if at != device:
        raise errors.GpuRefWrongDevice(
            f"rank {rank} of the world is device {device}, and its ref is of device {at}", device=at
        )

"""What the ranks of a world have to agree on in a collective: numbers for the page, and words for a person. Pure."""

from __future__ import annotations

from typing import Final

from atomr_mp.protocol.dtypes import ITEM_BYTES
from atomr_mp.protocol.words import counted
from atomr_mp.protocol.world import Signature
from atomr_mp.protocol.world.collectives import KIND_BITS, KINDS, Collective
from atomr_mp_workers.worlds.exchange.operators import OPERATORS

ELEMENT_TYPES: Final = tuple(ITEM_BYTES)
"""Names of the element types. A signature has the place of one of these, plus 1; 0 stands for none."""

FACTOR: Final = 2**8
"""Is added to the operator if elements are multiplied by a factor first. The factor itself may differ by rank."""

NO_ROOT: Final = 2**8 - 1
_ROOT_BITS: Final = 8


class Agreement:
    """One collective as all ranks have to call it.

    Args:
        kind: Which collective.
        elements: How many elements a rank gives, or a row of them, where counts differ.
        dtype: Name of the element type, "" if there are no elements.
        operator: Name of the operator, "" if nothing is computed.
        root: The rank that all send to or receive from, -1 if there is none.
        factor: Whether elements are multiplied by a factor.
    """

    __slots__ = ("_first", "_kind", "dtype", "elements", "operator", "root")

    def __init__(
        self,
        kind: Collective,
        elements: int = 0,
        dtype: str = "",
        *,
        operator: str = "",
        root: int = -1,
        factor: bool = False,
    ) -> None:
        self._kind: Final = int(kind)
        self.elements = elements
        self.dtype: Final = _NUMBERS[dtype]
        self.operator: Final = _NUMBERS[operator] + FACTOR * factor
        self.root: Final = root if root >= 0 else NO_ROOT
        self._first: tuple[int, Signature] | None = None
        """The latest gang call, and the signature of the first step in it."""

    def signature(self, step: int, sequence: int) -> Signature:
        """Return the signature of a step.

        Args:
            step: 0 for the first step. A collective of much data has many.
            sequence: Number of the gang call in which this is called. Equal collectives of two calls do not meet.
        """
        if not step and self._first is not None and self._first[0] == sequence:
            return self._first[1]
        made = Signature(
            self.elements,
            self.dtype,
            self.operator,
            self.root | sequence << _ROOT_BITS,
            self._kind | step << KIND_BITS,
        )
        if not step:
            self._first = sequence, made
        return made


_NUMBERS: Final = {
    "": 0,
    **{name: place for place, name in enumerate(ELEMENT_TYPES, start=1)},
    **{name: place for place, name in enumerate(OPERATORS, start=1)},
}


def sequence_of(signature: Signature) -> int:
    """Return the number of the gang call in which a collective was called."""
    return signature.root >> _ROOT_BITS


def in_words(signature: Signature) -> str:
    """Return a collective in words: "all_reduce(sum) of 3 float64"."""
    return "".join(_words(signature))


def both_sides(one: int, ones: Signature, other: int, others: Signature) -> str:
    """Return in words what two ranks call.

    Args:
        one: A rank.
        ones: Its signature.
        other: The other rank.
        others: The signature of that, which differs.
    """
    for rank, each, caller, called in ((one, ones, other, others), (other, others, one, ones)):
        if _kind(each) == Collective.REFUSED:
            return (
                f"rank {caller} calls {in_words(called)}, and rank {rank} does not: its part was refused, or has failed"
            )
    name, what = _words(ones)
    other_name, other_what = _words(others)
    if _kind(ones) == _kind(others) == Collective.PROGRAM and ones != others:
        return f"rank {one} and rank {other} run different programs; all ranks record the same steps"
    same_name, same_step = name == other_name, _step(ones) == _step(others)
    text = f"rank {one} calls {name}{what}, rank {other} {'' if same_name and what and other_what else other_name}"
    text = f"{text.removesuffix(' ')}{other_what}"
    if not same_step:
        text += f"; rank {one} is at step {_step(ones)} of it, rank {other} at step {_step(others)}"
    elif (name, what) == (other_name, other_what):
        text += ", and they differ in the counts that they have read of each other"
    return text


def _kind(signature: Signature) -> int:
    return signature.kind & 2**KIND_BITS - 1


def _step(signature: Signature) -> int:
    return signature.kind >> KIND_BITS


def _words(signature: Signature) -> tuple[str, str]:
    """Return a collective's name with its operator and root, and " of " its elements; of any numbers."""
    kind = _kind(signature)
    root = signature.root & 2**_ROOT_BITS - 1
    operator, factor = signature.operator % FACTOR, signature.operator // FACTOR
    more = []
    if operator:
        more.append(OPERATORS[operator - 1] if operator <= len(OPERATORS) else f"operator {operator}")
    if factor:
        more.append("with a factor")
    if root != NO_ROOT:
        more.append(f"root={root}")
    name = KINDS.get(kind, f"collective {kind}") + (f"({', '.join(more)})" if more else "")
    if not signature.dtype:
        return name, ""
    known = signature.dtype <= len(ELEMENT_TYPES)
    dtype = ELEMENT_TYPES[signature.dtype - 1] if known else f"elements of type {signature.dtype}"
    if kind == Collective.ALL_TO_ALL_V:  # the number of elements is that of a row, and in later steps a sum of counts
        row = "" if _step(signature) else f", {counted(signature.elements, 'element')} a row"
        return name, f" of {dtype}{row}"
    return name, f" of {signature.elements} {dtype}"

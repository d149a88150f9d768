"""The steps of a sum of products in NumPy's notation: reductions, contractions of pairs, a permutation. Pure.

The order of the pairs is that of NumPy's `einsum_path`, which gets shapes only.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from atomr_mp.protocol.declaration.subscripts import Expression
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import tensor
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp_workers.libraries.method import LaidOut


class Step(NamedTuple):
    """A request whose operands are operands of the whole, or results of earlier steps."""

    request: LibraryRequest
    """The request, with the layouts of its operands."""
    inputs: tuple[int, ...]
    """Numbers of operands: first those of the whole, then the results, in order."""

    @property
    def target(self) -> Layout:
        """Layout of its result."""
        return _target(self.request)


class EinsumSteps:
    """The steps of a request, one after the other; the last one writes its output.

    Args:
        request: The request; only the layouts of its arrays count.
    """

    def __init__(self, request: tensor.EinsteinSum) -> None:
        self._found: Final = Expression(request.subscripts, [each.shape for each in request.operands])
        self._dtype: Final = request.operands[0].dtype
        self._compute: Final = request.compute
        self._out: Final[Any] = request.out
        self._layouts: Final[list[Layout]] = []
        self._labels: Final[list[str]] = []
        self.steps: Final[list[Step]] = []
        for operand, labels in zip(request.operands, self._found.operands, strict=True):
            layout, unique = _diagonal(operand.layout, labels)
            self._layouts.append(layout)
            self._labels.append(unique)
        self.views: Final = list(self._layouts)
        """The operands of the whole, each with its diagonal."""
        self._plan(list(range(len(request.operands))))

    def _plan(self, left: list[int]) -> None:
        """Add the steps for all operands that are left."""
        if len(left) == 1:
            self._last_of_one(left[0])
            return
        left = [self._summed(number, left) for number in left]
        for pair in self._path(left):
            first, second = (left[at] for at in pair)
            left = [number for number in left if number not in {first, second}]
            left.append(self._contracted(first, second, left))

    def _last_of_one(self, number: int) -> None:
        labels, output = self._labels[number], self._found.output
        kind = tensor.Permutation if len(labels) == len(output) else tensor.Reduction
        made: Any = kind
        names = ("modes_b", "b") if kind is tensor.Permutation else ("modes_c", "c")
        request = made(
            LaidOut(self._layouts[number]), modes_a=labels, **dict(zip(names, (output, self._out), strict=True))
        )
        self._add(request, (number,), output)

    def _summed(self, number: int, others: Sequence[int]) -> int:
        """Sum over labels that no other operand and not the output has; return the number of the rest."""
        elsewhere = {label for other in others if other != number for label in self._labels[other]}
        kept = "".join(each for each in self._labels[number] if each in elsewhere or each in self._found.output)
        if kept == self._labels[number]:
            return number
        operand, target = LaidOut(self._layouts[number]), self._temporary(kept)
        self._add(tensor.Reduction(operand, self._labels[number], kept, LaidOut(target)), (number,), kept)
        return len(self._layouts) - 1

    def _contracted(self, first: int, second: int, others: Sequence[int]) -> int:
        """Contract two operands; return the number of the result."""
        wanted = {*self._found.output, *(label for other in others for label in self._labels[other])}
        labels = "".join(dict.fromkeys(self._labels[first] + self._labels[second]))
        kept = "".join(each for each in labels if each in wanted) if others else self._found.output
        target = LaidOut(self._temporary(kept)) if others else self._out
        operands = LaidOut(self._layouts[first]), LaidOut(self._layouts[second])
        modes = self._labels[first], self._labels[second], kept
        self._add(tensor.Contraction(*operands, *modes, target, compute=self._compute), (first, second), kept)
        return len(self._layouts) - 1

    def _path(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Return the pairs, by their places among what is left; a result comes behind it."""
        in_turn = [(0, 1)] + [(0, len(numbers) - 1 - at) for at in range(1, len(numbers) - 1)]
        if len(numbers) == 2 or 0 in self._found.lengths.values():
            return in_turn
        letters = dict(zip(self._found.lengths, string.ascii_letters, strict=False))
        terms = ["".join(letters[label] for label in self._labels[number]) for number in numbers]
        text = f"{','.join(terms)}->{''.join(letters[label] for label in self._found.output)}"
        shapes = [np.broadcast_to(np.float32(0), self._layouts[number].shape) for number in numbers]
        path = np.einsum_path(text, *shapes, optimize="greedy")[0][1:]
        return path if all(len(pair) == 2 for pair in path) else in_turn

    def _temporary(self, labels: str) -> Layout:
        return Layout.contiguous(self._dtype, [self._found.lengths[label] for label in labels])

    def _add(self, request: LibraryRequest, inputs: tuple[int, ...], labels: str) -> None:
        self.steps.append(Step(request, inputs))
        self._layouts.append(_target(request))
        self._labels.append(labels)


def _target(request: Any) -> Layout:
    layout: Layout = (request.b if request.name == "permutation" else request.c).layout
    return layout


def _diagonal(layout: Layout, labels: str) -> tuple[Layout, str]:
    """Return an array with each label once: along one that is there twice, the strides of both add up."""
    unique = "".join(dict.fromkeys(labels))
    lengths = dict(zip(labels, layout.shape, strict=True))
    strides = [
        sum(step for each, step in zip(labels, layout.strides, strict=True) if each == label) for label in unique
    ]
    return layout._replace(shape=tuple(lengths[label] for label in unique), strides=tuple(strides)), unique

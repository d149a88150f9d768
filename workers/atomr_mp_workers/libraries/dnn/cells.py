"""Cells of recurrent networks: a step forward, and its gradients."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from atomr_mp_workers.libraries.dnn.activations import sigmoid

Array = npt.NDArray[Any]


class CellStep(NamedTuple):
    """A step of a cell for some sequences."""

    h: Array
    c: Array
    """The state that only lstm has; that of another cell stays as it is."""
    gates: tuple[Array, ...]
    """The numbers that the gradients need."""


class Gradients(NamedTuple):
    """The gradients of a step by what it got."""

    inputs: Array
    """By the gates' share of the input."""
    hidden: Array
    """By the gates' share of the state."""
    h: Array
    """By the state, beside that share."""
    c: Array


class Cell:
    """A cell; the shares of input and state in its gates are sums of products, with their biases.

    Args:
        mode: Its kind.
    """

    def __init__(self, mode: str) -> None:
        self._mode: Final = mode

    def step(self, inputs: Array, hidden: Array, h: Array, c: Array) -> CellStep:
        """Return the next states."""
        if self._mode == "lstm":
            into, forget, cell, output = np.split(inputs + hidden, 4, axis=1)
            into, forget, cell, output = sigmoid(into), sigmoid(forget), np.tanh(cell), sigmoid(output)
            c = forget * c + into * cell
            bent = np.tanh(c)
            return CellStep(output * bent, c, (into, forget, cell, output, bent))
        if self._mode == "gru":
            (reset, update, new), (by_reset, by_update, by_new) = (
                np.split(each, 3, axis=1) for each in (inputs, hidden)
            )
            reset, update = sigmoid(reset + by_reset), sigmoid(update + by_update)
            new = np.tanh(new + reset * by_new)
            return CellStep((1 - update) * new + update * h, c, (reset, update, new, by_new))
        total = inputs + hidden
        found = np.tanh(total) if self._mode == "tanh" else np.maximum(total, 0)
        return CellStep(found, c, (found,))

    def back(self, gates: tuple[Array, ...], h: Array, c: Array, dh: Array, dc: Array) -> Gradients:
        """Return the gradients of a step from those by its results.

        Args:
            gates: As the step has returned them.
            h: The state before it.
            c: The other state before it.
            dh: The gradient by the state behind it.
            dc: The gradient by the other one.
        """
        if self._mode == "lstm":
            into, forget, cell, output, bent = gates
            dc = dc + dh * output * (1 - bent**2)
            parts = (
                dc * cell * into * (1 - into),
                dc * c * forget * (1 - forget),
                dc * into * (1 - cell**2),
                dh * bent * output * (1 - output),
            )
            total = np.concatenate(parts, axis=1)
            return Gradients(total, total, np.zeros_like(h), dc * forget)
        if self._mode == "gru":
            reset, update, new, by_new = gates
            d_new = dh * (1 - update) * (1 - new**2)
            d_update = dh * (h - new) * update * (1 - update)
            d_reset = d_new * by_new * reset * (1 - reset)
            inputs, hidden = (np.concatenate((d_reset, d_update, last), axis=1) for last in (d_new, d_new * reset))
            return Gradients(inputs, hidden, dh * update, dc)
        (found,) = gates
        total = dh * (1 - found**2) if self._mode == "tanh" else dh * (found > 0)
        return Gradients(total, total, np.zeros_like(h), dc)

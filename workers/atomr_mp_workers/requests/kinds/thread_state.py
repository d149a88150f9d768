"""Libraries' state by thread that a stream has set: saved while others run on the thread, and restored for it.

A generator may yield inside `with torch.no_grad():` or `with cupy.cuda.Stream():`. Those set state of the thread, which
the end of the stream's `with` undoes; steps of other streams in between must neither see nor undo it. Context variables
are not here: each stream has its own context.
"""

from __future__ import annotations

import sys
from typing import Any, Final

_KINDS: Final = ("cuda", "cpu")
"""Kinds of devices for which torch casts by itself."""


class ThreadState:
    """The thread state of one stream. `enter` and `leave` are called on its thread, around each turn."""

    __slots__ = ("_cupy", "_inference", "_outside", "_torch")

    def __init__(self) -> None:
        self._torch: tuple[Any, ...] | None = None
        """torch's state at the end of its last turn, if that differed from the thread's."""
        self._cupy: tuple[int, Any] | None = None
        self._inference: Any = None
        """The context that keeps torch's inference mode off between turns, if the stream is in that mode."""
        self._outside: tuple[tuple[Any, ...] | None, tuple[int, Any] | None] = (None, None)

    def enter(self) -> None:
        """Restore the state that the stream has set."""
        torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
        if torch is None and cupy is None:
            return
        self._outside = _read_torch(torch), _read_cupy(cupy)
        if self._inference is not None:
            self._inference.__exit__(None, None, None)
            self._inference = None
        if self._torch is not None:
            _write_torch(torch, self._torch)
        if self._cupy is not None:
            _write_cupy(cupy, self._cupy)

    def leave(self) -> None:
        """Save the state that the stream has set, and restore the thread's own."""
        torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
        outside_torch, outside_cupy = self._outside
        found_torch, found_cupy = _read_torch(torch), _read_cupy(cupy)
        self._torch = self._cupy = None
        if found_torch is not None and outside_torch is not None and found_torch != outside_torch:
            self._torch = found_torch
            if torch is not None and torch.is_inference_mode_enabled() != outside_torch[0]:
                self._inference = torch.inference_mode(outside_torch[0])
                self._inference.__enter__()
            _write_torch(torch, outside_torch)
        if found_cupy is not None and outside_cupy is not None and found_cupy != outside_cupy:
            self._cupy = found_cupy
            _write_cupy(cupy, outside_cupy)


def _read_torch(torch: Any) -> tuple[Any, ...] | None:
    """Return (inference mode, gradient mode, autocast by kind of device, current CUDA device and stream)."""
    if torch is None or not hasattr(torch, "get_autocast_dtype") or not hasattr(torch, "cuda"):
        return None  # it is being imported just now, or is older than 2.4
    kinds = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _KINDS]
    autocast = kinds, torch.is_autocast_cache_enabled()
    cuda = None
    if torch.cuda.is_initialized():
        cuda = torch.cuda.current_device(), torch.cuda.current_stream()
    return torch.is_inference_mode_enabled(), torch.is_grad_enabled(), autocast, cuda


def _write_torch(torch: Any, found: tuple[Any, ...]) -> None:
    """Set the state that `_read_torch` has returned, except the inference mode."""
    _, gradient, autocast, cuda = found
    torch._C._set_grad_enabled(gradient)  # noqa: SLF001 - `torch.set_grad_enabled` is this, and more
    kinds, cached = autocast
    for kind, (enabled, dtype) in zip(_KINDS, kinds, strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(cached)
    if cuda is not None:
        torch.cuda.set_stream(cuda[1])
        torch.cuda.set_device(cuda[0])


def _read_cupy(cupy: Any) -> tuple[int, Any] | None:
    """Return the current device and stream."""
    if cupy is None or not hasattr(cupy, "cuda"):
        return None
    return cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream()


def _write_cupy(cupy: Any, found: tuple[int, Any]) -> None:
    device, stream = found
    cupy.cuda.runtime.setDevice(device)
    stream.use()

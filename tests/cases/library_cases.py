"""Every declared request of every library: how to draw one, its expected results, and its method call.

A library's own module `tests/NAME_cases.py` has `assert_agrees(request, random, run)`, and where declarations do not
say enough to draw from `requests(cls)`.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from hypothesis import strategies as st

from atomr_mp.protocol.declaration.arguments import NUMBERS, declared, with_arrays
from atomr_mp.protocol.libraries import DECLARED, requests_of
from atomr_mp.protocol.libraries.base import LibraryRequest, is_factor, scalar
from atomr_mp_workers.libraries.lazy_library import module_of
from atomr_mp_workers.memory.arrays import DeviceArray
from tests import declared as drawing
from tests.fakes.fake_arrays import FakeArray


class Case(NamedTuple):
    """A request of a library."""

    library: str
    request: type[LibraryRequest]

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"{self.library}.{self.request.name}"

    def is_on(self, backend: str) -> bool:
        """Return whether a backend has the library."""
        return importlib.util.find_spec(module_of(self.library, backend)) is not None

    def drawn(self) -> st.SearchStrategy[Any]:
        """Return the strategy that draws a valid request."""
        own: Callable[..., st.SearchStrategy[Any]] = getattr(self._module, "requests", drawing.requests)
        return own(self.request)

    def assert_agrees(
        self, request: Any, random: np.random.Generator, run: Callable[[Any], Any], *, on_gpu: bool = False
    ) -> None:
        """Give a request's arrays random numbers, have it done, and check all of their memory.

        Args:
            request: A request whose memory is poisoned.
            random: Where the numbers are from.
            run: Does a request.
            on_gpu: Whether functions such as tanh may be those of the hardware.
        """
        agrees = self._module.assert_agrees
        fast = {"fast": True} if on_gpu and "fast" in inspect.signature(agrees).parameters else {}
        agrees(request, random, run, **fast)

    @property
    def _module(self) -> Any:
        return importlib.import_module(f"tests.cases.{self.library}_cases")


CASES: Final = [Case(library, request) for library in DECLARED for request in requests_of(library).values()]


def call(libraries: Any, library: str, request: Any, array: Callable[[Any], Any]) -> Any:
    """Call the method that makes a request like this one, and return what it returns.

    Args:
        libraries: Has the library as an attribute: a device, a program, or an actor's libraries.
        library: Its name.
        request: The request.
        array: Returns what is given for an operand.
    """
    face = getattr(libraries, library)
    if "source" in request.held:
        source = request.source
        kinds = {} if source.is_quasi else {"seed": source.seed}
        face = face.generator(kind=source.kind, offset=source.offset, dimensions=source.dimensions, **kinds)
    given = with_arrays(request, array)
    kind: type[LibraryRequest] = type(request)
    factors = declared(kind).parameters
    values = {
        name: scalar(value) if is_factor(factors.get(name)) and isinstance(value, NUMBERS) else value
        for name, value in ((name, getattr(given, name)) for name in request.__struct_fields__)
        if name not in request.held
    }
    return getattr(face, request.name)(**values)


def arrays_in(value: Any) -> Any:
    """Return the array of an operand; what has something attached is given as it is on the device."""
    if getattr(value, "attached", None) is not None:
        return value.named()
    return value.array if isinstance(value, FakeArray | DeviceArray) else value

"""A library whose requests the data decide: whether there is a result, and how large it is."""

from __future__ import annotations

import sys
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import pytest

import atomr_mp_workers.libraries
from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.declaration.arguments import reads, writes
from atomr_mp.protocol.libraries import base, requests_of
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.messages import data
from atomr_mp.protocol.refs import Operand
from atomr_mp_workers.libraries.base import Library, array
from atomr_mp_workers.requests.peers import Peer
from atomr_mp_workers.requests.request import Later
from tests.pure.test_dispatch import NEVER_NS, TOKEN, Worker, outcomes

NAME: Final = "deciding"


class Invert(LibraryRequest, frozen=True):
    """Compute 1 / x, and how many elements of x are 0."""

    name: ClassVar = "invert"
    types: ClassVar = {"T": base.REAL}
    undefined: ClassVar = "An element is 0."
    x: Annotated[Operand, reads("n")]
    out: Annotated[Operand, writes("n")]
    zeros: Annotated[Operand, writes("_")]


class Deciding(Library):
    """Does them with NumPy."""

    names = "out"
    """What it says is undefined."""

    def invert(self, request: Invert) -> Later:
        """Invert x; what is left undefined is only the output of the division."""
        names = self.names
        x, out, zeros = array(request.x), array(request.out), array(request.zeros)
        with np.errstate(divide="ignore"):
            out[...] = 1 / x
        zeros[...] = (x == 0).sum()

        def read() -> None:
            if zeros[0]:
                raise errors.NumericalError("x is 0", row=int(np.argmin(abs(x))), undefined=names)

        return Later(read)


class DecidingWorker(Worker):
    """A worker that has this library.

    Args:
        patch: Makes the library known.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        patch.setattr(atomr_mp_workers.libraries, "LIBRARIES", (NAME, "blas", "program"))
        own = {each.name: each for each in base.requests_in(sys.modules[__name__])}
        patch.setattr(
            atomr_mp_workers.libraries, "requests_of", lambda name: own if name == NAME else requests_of(name)
        )
        self.context: Final = self.libraries._context
        self.library = Deciding(self.context, self.device.make_stream(NAME, inline_bytes=2**40))
        self.libraries._instances[NAME] = self.library

    def request(self, peer: Peer, request: LibraryRequest, library: str = NAME) -> int:
        """Have a request arrive; return its id."""
        self._ids += 1
        body, _, placed = values.encode(request)
        call = data.Call(self._ids, f"{library}.{request.name}", NEVER_NS, 0, body, refs=len(placed))
        self.dispatcher.take(self.envelope.open(peer, data.Calls(TOKEN, [call]), []))
        return self._ids

    def until_ended(self, peer: Peer, *ids: int) -> dict[int, errors.AtomrError | None]:
        """Take back what has ended until these requests are answered; return all outcomes."""
        while not set(ids) <= set(outcomes(peer)):
            self.take_back()
        return outcomes(peer)

    def array(self, peer: Peer, values: Any) -> Any:
        """Return an array of a client."""
        content = np.asarray(values, "float32")
        array = self.store.buffers.allocate(peer.session.holder, "float32", content.shape)
        array.array[...] = content
        self.store.lease(peer.session.holder, array)
        return array

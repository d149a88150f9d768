"""What makes two requests the same to those that look for the one that ends workers."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.client.fingerprint import fingerprint
from atomr_mp.client.lanes.retry_policy import identify, key_of, was_answered
from atomr_mp.client.reply import Reply
from atomr_mp.protocol import values
from atomr_mp.protocol.declaration.arguments import with_arrays
from atomr_mp.protocol.libraries import blas
from atomr_mp.protocol.libraries.base import ALIGNED_BYTES
from atomr_mp.protocol.refs import Operand, PassedRef
from atomr_mp.protocol.token import TOKEN_BYTES
from tests.cases.library_cases import CASES, Case
from tests.fakes.fake_arrays import FakeArray


def anew(array: Operand) -> PassedRef:
    """Return the ref of an array that the same client makes in the next incarnation."""
    wire = array.to_wire()
    return PassedRef(
        msgspec.structs.replace(
            wire, token=b"\1" * TOKEN_BYTES, buffer=wire.buffer + 7, slab=5, offset=wire.offset + 3 * ALIGNED_BYTES
        )
    )


def sent(method: str, arguments: object, refs: int) -> Reply:
    """Return a request as it is kept until it is answered."""
    body, payload, _ = values.encode(arguments)
    reply = Reply(cast("Any", None), 1, method, 0, body)
    reply.payload, reply.refs = payload, refs
    return reply


def test_equal_arguments_have_equal_fingerprints() -> None:
    """However large an array is, by whatever container it comes; other content and other methods have others."""
    large, small = np.arange(10**5), np.arange(10)
    assert fingerprint("A.b", (large, small)) == fingerprint("A.b", [large.copy(), small.copy()])
    assert fingerprint("A.b", (large,)) != fingerprint("A.b", (large + 1,))
    assert fingerprint("A.b", (large,)) != fingerprint("A.b", (large.astype("int32"),))
    assert fingerprint("A.b", (large,)) != fingerprint("A.c", (large,))
    assert fingerprint("A.b", {"n": 1}) != fingerprint("A.b", (1,))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
@settings(max_examples=5)
@given(data=st.data())
def test_a_library_s_request_is_the_same_with_refs_made_anew(case: Case, data: st.DataObject) -> None:
    """As it was called, and as it was sent."""
    request = data.draw(case.drawn())
    again = with_arrays(request, anew)
    key = key_of(case.name, request)
    assert key == key_of(case.name, again) == identify(sent(case.name, again, 1))
    assert key is not None


def test_a_library_s_request_is_another_with_other_layouts_parameters_or_aliasing() -> None:
    """And with another alignment, by which libraries choose kernels."""
    x, y = (FakeArray.of(np.zeros(6), "float64") for _ in range(2))
    requests = [
        blas.Axpy(x, y, alpha=2.0),
        blas.Axpy(x, y, alpha=3.0),
        blas.Axpy(x, x, alpha=2.0),
        blas.Axpy(x[:3], y[:3], alpha=2.0),
        blas.Axpy(x[3:], y[:3], alpha=2.0),
        blas.Axpy(x[::2], y[:3], alpha=2.0),
    ]
    assert len({fingerprint("blas.axpy", each) for each in requests}) == len(requests)


def test_a_call_of_an_actor_s_method_with_refs_has_no_fingerprint() -> None:
    """What it does depends on their content, which nothing here names."""
    arguments = ("x", FakeArray.of(np.zeros(6), "float64"))
    assert fingerprint("A.b", arguments) is None
    assert identify(sent("A.b", arguments, 1)) is None


@pytest.mark.parametrize(
    ("error", "refs", "speaks"),
    [
        (None, 1, True),
        (errors.NumericalError("singular"), 1, True),
        (errors.BorrowConflict("a client has a view open"), 1, False),
        (errors.GpuRefStale("its worker has ended"), 1, False),
        (errors.InvalidRequest("n is no number"), 0, True),
        (errors.WorkerLost("killed"), 0, False),
    ],
)
def test_which_answers_speak_for_a_suspect(error: errors.AtomrError | None, refs: int, *, speaks: bool) -> None:
    """It has run and its worker lives, or it will be refused in the same way each time."""
    reply = sent("blas.axpy", (), refs)
    reply.error = error
    assert was_answered(reply) is speaks

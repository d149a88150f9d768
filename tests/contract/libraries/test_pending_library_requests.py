"""Cancels, and other clients, beside library requests that wait behind others."""

from __future__ import annotations

from typing import Final

import numpy as np

import atomr_mp
from atomr_mp import errors
from tests.support import DEADLINE_S, Ledger
from tests.worlds import on_host

pytestmark = on_host

LONG: Final = (2**22,)

COUNT: Final = 40
"""Requests, far more than are on a stream at a time."""


def test_what_waits_is_dropped_by_cancel_and_says_so(ledger: Ledger) -> None:
    """Requests that were not begun have written nothing, and the client goes on at once."""
    with ledger.start(gpus=1) as pool:
        device = pool.device(0)
        outs = [device.empty(LONG, "float64") for _ in range(COUNT)]
        device.rng.generator(seed=0).normal(outs[0]).result(
            DEADLINE_S
        )  # what waits while a library is loaded has begun
        for out in outs:
            out.fill(7.0)
        replies = [device.rng.generator(seed=at).normal(out) for at, out in enumerate(outs)]
        replies[0].result(DEADLINE_S)
        for reply in replies:
            reply.cancel()
        ended = [reply.exception(DEADLINE_S) for reply in replies]
        waited = [each for each in ended if isinstance(each, errors.Cancelled) and not each.maybe_executed]
        assert len(waited) > COUNT / 2
        for out, error in zip(outs, ended, strict=True):
            if error is not None and error in waited:
                assert np.all(out.numpy() == 7.0)


def test_another_client_is_not_kept_by_all_that_waits(ledger: Ledger) -> None:
    """It has its turn behind what is on the stream, not behind what is queued."""
    with ledger.start(gpus=1) as pool, atomr_mp.connect(run_dir=pool.run_dir) as other:
        device, theirs = pool.device(0), other.device(0)
        outs = [device.empty(LONG, "float64") for _ in range(COUNT)]
        device.rng.generator(seed=0).normal(outs[0]).result(DEADLINE_S)
        small = theirs.empty((2**15,), "float64")
        replies = [device.rng.generator(seed=at).normal(out) for at, out in enumerate(outs)]
        replies[0].result(DEADLINE_S)
        theirs.rng.generator(seed=1).normal(small).result(DEADLINE_S)
        assert not replies[-1].is_over
        for reply in replies:
            reply.result(DEADLINE_S)

"""What torch keeps by thread is a stream's own, though steps of others come in between."""

from __future__ import annotations

import pytest

from atomr_mp_workers.requests.kinds.thread_state import ThreadState

torch = pytest.importorskip("torch")


def found() -> tuple[bool, bool, bool, object]:
    """Return the modes of this thread."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
    )


def test_modes_are_put_away_and_put_back() -> None:
    """Whatever the order of turns and ends; afterwards the thread is as before."""
    before = found()
    contexts = [
        torch.no_grad(),
        torch.inference_mode(),
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.enable_grad(),
    ]
    states = [ThreadState() for _ in contexts]
    seen = []
    for state, context in zip(states, contexts, strict=True):
        state.enter()
        context.__enter__()
        seen.append(found())
        state.leave()
        assert found() == before
    for _ in range(2):
        for state, modes in zip(states, seen, strict=True):
            state.enter()
            assert found() == modes
            state.leave()
            assert found() == before
    for at in (1, 3, 0, 2):
        states[at].enter()
        contexts[at].__exit__(None, None, None)
        assert found() == before
        states[at].leave()
        assert found() == before
    assert len({*seen}) >= 3

"""What libraries keep by thread is put away between a stream's turns; with stand-ins for torch and CuPy."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_mp_workers.requests.kinds.thread_state import ThreadState


class FakeTorch:
    """The modes of one thread, as torch has them."""

    def __init__(self) -> None:
        self.gradient, self.inference, self.cached = True, False, True
        self.autocast: dict[str, list[Any]] = {"cuda": [False, "half"], "cpu": [False, "half"]}
        self.current = [0, "default"]
        self.cuda = SimpleNamespace(
            is_initialized=lambda: True,
            current_device=lambda: self.current[0],
            current_stream=lambda: self.current[1],
            set_device=lambda device: self.current.__setitem__(0, device),
            set_stream=lambda stream: self.current.__setitem__(1, stream),
        )
        self._C = SimpleNamespace(_set_grad_enabled=lambda value: setattr(self, "gradient", value))
        self.is_grad_enabled = lambda: self.gradient
        self.is_inference_mode_enabled = lambda: self.inference
        self.is_autocast_enabled = lambda kind: self.autocast[kind][0]
        self.get_autocast_dtype = lambda kind: self.autocast[kind][1]
        self.set_autocast_enabled = lambda kind, value: self.autocast[kind].__setitem__(0, value)
        self.set_autocast_dtype = lambda kind, value: self.autocast[kind].__setitem__(1, value)
        self.is_autocast_cache_enabled = lambda: self.cached
        self.set_autocast_cache_enabled = lambda value: setattr(self, "cached", value)

    def inference_mode(self, mode: bool) -> Any:  # noqa: FBT001 - as torch has it
        """Return a guard: it leaves what was there when it was entered."""
        torch = self

        class Guard:
            def __enter__(self) -> None:
                self.before = torch.inference, torch.gradient
                torch.inference, torch.gradient = mode, not mode

            def __exit__(self, *_exc: object) -> None:
                torch.inference, torch.gradient = self.before

        return Guard()

    def found(self) -> tuple[Any, ...]:
        """Return all modes."""
        autocast = tuple(map(tuple, self.autocast.values()))
        return self.gradient, self.inference, self.cached, autocast, tuple(self.current)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    """Stands for torch, which this process has imported."""
    fake = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    return fake


def test_each_stream_has_its_own_modes(torch: FakeTorch) -> None:
    """In any order of turns; the thread itself keeps those that it had."""
    before = torch.found()
    states = [ThreadState() for _ in range(4)]

    def change(number: int) -> None:
        match number:
            case 0:
                torch.gradient = False
            case 1:
                torch.inference, torch.gradient = True, False
            case 2:
                torch.autocast["cpu"] = [True, "bfloat16"]
                torch.cached = False
            case 3:
                torch.current = [1, "own"]

    seen = []
    for number, state in enumerate(states):
        state.enter()
        change(number)
        seen.append(torch.found())
        state.leave()
        assert torch.found() == before
    assert len({*seen}) == 4
    for order in ((3, 1, 0, 2), (2, 0, 1, 3)):
        for number in order:
            states[number].enter()
            assert torch.found() == seen[number]
            states[number].leave()
            assert torch.found() == before


def test_what_a_stream_undoes_stays_undone(torch: FakeTorch) -> None:
    """At its end the thread is as it was."""
    before, state = torch.found(), ThreadState()
    state.enter()
    torch.gradient = False
    state.leave()
    state.enter()
    torch.gradient = True
    state.leave()
    assert torch.found() == before
    state.enter()
    assert torch.found() == before
    state.leave()


def test_the_current_device_and_stream_of_cupy_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams by their own way of being current."""
    current: list[Any] = [0, None]
    streams = [SimpleNamespace(name=name) for name in "ab"]
    for stream in streams:
        stream.use = lambda stream=stream: current.__setitem__(1, stream)
    current[1] = streams[0]
    cuda = SimpleNamespace(
        runtime=SimpleNamespace(getDevice=lambda: current[0], setDevice=lambda device: current.__setitem__(0, device)),
        get_current_stream=lambda: current[1],
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    state = ThreadState()
    state.enter()
    current[:] = [1, streams[1]]
    state.leave()
    assert current == [0, streams[0]]
    state.enter()
    assert current == [1, streams[1]]
    state.leave()
    assert current == [0, streams[0]]

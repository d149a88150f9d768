"""Arguments against every annotation that is supported: what fits, or a refusal that says so."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages.control import ActorSpec
from atomr_mp_workers.loading import load
from fuzzing.target import Target
from fuzzing.targets.bodies import Refs, SentRef, wire_ref

ACTOR: Final = f"{Path(__file__).parents[1] / 'annotated.py'}:Annotated_"

UUID: Final = "12345678-1234-5678-1234-567812345678"

FITTING: Final[dict[str, list[Any]]] = {
    "plain": [1, 0.5, "text", b"bytes", True, None],
    "literals": ["one", 2, "x"],
    "nested": [[1, 2], {"a": 0.5}, [["a", None], []], {1: [b"x"]}],
    "unions": [1, {"a": 1}, 0.5],
    "shaped": [[1, "a"], [0.5, 1.0], [1, 2], ["a"]],
    "records": [
        {"factor": 1.5, "names": ["a"]},
        {"x": 1.0, "y": 2},
        {"a": 1, "b": [2]},
        [1, "two"],
        {"type": "closed", "inner": {"factor": 0.5}},
    ],
    "times": ["2024-02-29T12:00:00Z", "2024-02-29", "12:30:00", "P1DT3600S"],
    "names": [UUID, "1.50", "red", 2],
    "arrays": [np.zeros((2, 3), "float32"), np.arange(5), [np.zeros(0), 1]],
    "written": [None, [np.zeros(3, "float32")]],
    "abstract": [[1, 2], {"a": 1}],
    "bare": [{"any": [1, None]}, 2],
    "batched": ["one", 3],
    "streamed": [2, "y"],
    "echo": [[1, {"a": b"b"}]],
}
"""Arguments that fit, by method."""

NAMES: Final = tuple(FITTING)

PARAMETERS: Final = "abcdef"


def arguments(rng: random.Random, name: str) -> bytes:
    """Return the body of a call that fits, by position or by name, without the arrays that need a frame."""
    given = [SentRef(wire_ref(rng)) if each is None and name == "written" else each for each in FITTING[name]]
    by_name = rng.random() < 0.3
    return bytes(values.encode(dict(zip(PARAMETERS, given, strict=False)) if by_name else given)[0])


class Arguments(Target):
    """A method's number, and its arguments: [number, body]. Arguments of several items too, if it is batched."""

    name = "arguments"

    def __init__(self) -> None:
        self._methods: Final = {method.info.name: method for method in load(ActorSpec("Annotated_", ACTOR)).methods}
        self._resolve: Final = Refs().resolve

    def make(self, rng: random.Random) -> bytes:
        """Return arguments that fit."""
        name = rng.choice(NAMES)
        body = arguments(rng, name)
        if name == "batched" and rng.random() < 0.5:
            body = msgspec.msgpack.encode([FITTING[name]] * rng.randint(0, 3))
        return msgspec.msgpack.encode([NAMES.index(name), body])

    def check(self, data: bytes) -> None:
        """Decode them; a refusal has to be one that can be sent."""
        try:
            number, body = _SPLIT.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        method = self._methods[NAMES[number % len(NAMES)]]
        for decode in (lambda: method.arguments(body, (), self._resolve), lambda: _items(method, body)):
            try:
                decode()
            except errors.RequestError as error:
                info = msgspec.msgpack.decode(msgspec.msgpack.encode(ErrorInfo.of(error)), type=ErrorInfo)
                assert isinstance(info.error(), errors.RequestError)


def _items(method: Any, body: bytes) -> None:
    with contextlib.suppress(AttributeError):
        decode = method.items
        if decode is not None:
            decode(body, ())


_SPLIT: Final = msgspec.msgpack.Decoder(tuple[int, bytes])

"""Bodies that come by HTTP: arguments as JSON, by a method's schema, and arrays as `.npy`."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Coroutine
from typing import Any, Final

import msgspec
import numpy as np

from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.messages.control import ActorSpec
from atomr_mp.serve import calls
from atomr_mp.serve.http.limits import Limits
from atomr_mp.serve.http.problems import Problem
from atomr_mp.serve.openai import bodies
from atomr_mp.serve.openai.embeddings import inputs_of
from atomr_mp.serve.values import arrays, results, schemas
from atomr_mp_workers.loading import load
from fuzzing import trees
from fuzzing.target import Target, damage
from fuzzing.targets.annotations import ACTOR, FITTING, NAMES, PARAMETERS

TEXTS: Final = (
    *(
        b"null",
        b"NaN",
        b"1e999",
        b"-0",
        b'"\\ud800"',
        b"1" * 5000,
        b"[" * 70,
        b"[" * 9999,
        b"{}",
        b'"',
        b"\xff",
        b"\xef\xbb\xbf",
    ),
    *(
        b"9223372036854775808",
        b"18446744073709551616",
        b"1e400",
        b"0.1e-999",
        b"Infinity",
        b'{"a":1,"a":2}',
        b"[[1],[2,3]]",
    ),
)

USED: Final = frozenset({"model", "input", "encoding_format", "user"})


class JsonBodies(Target):
    """A method's number as a byte, and a body."""

    name = "json"

    def __init__(self) -> None:
        methods = load(ActorSpec("Annotated_", ACTOR)).methods
        self._plans: Final = {each.info.name: schemas.plan_of(each.name, each.info) for each in methods}

    def make(self, rng: random.Random) -> bytes:
        """Return arguments that fit."""
        name = rng.choice(NAMES)
        given = [each.tolist() if isinstance(each, np.ndarray) else _plain(each) for each in FITTING[name]]
        found: Any = given if rng.random() < 0.5 else dict(zip(PARAMETERS, given, strict=False))
        if rng.random() < 0.1:
            found = {"model": "m", "input": rng.choice(("a", ["a", "b"], [1, 2])), "n": 1, "logprobs": None}
        return bytes((NAMES.index(name),)) + msgspec.json.encode(found)

    def mutate(self, rng: random.Random, data: bytes) -> bytes:
        """Return a body of another structure, or with other bytes."""
        number, body = data[:1], data[1:]
        if rng.random() < 0.5:
            with contextlib.suppress(Exception):  # what has no form in JSON
                changed = trees.mutated(rng, msgspec.msgpack.encode(msgspec.json.decode(body)))
                return number + msgspec.json.encode(msgspec.msgpack.decode(changed))
        if rng.random() < 0.5:
            at = rng.randint(0, len(body))
            return number + body[:at] + rng.choice(TEXTS) + body[at + rng.randint(0, 4) :]
        return number + damage(rng, body)

    def check(self, data: bytes) -> None:
        """Make arguments of it, and a body in OpenAI's form."""
        plan = self._plans[NAMES[(data[0] if data else 0) % len(NAMES)]]
        exchange: Any = Given(data[1:])
        with contextlib.suppress(Problem, errors.RequestError):
            values.encode(done(calls.arguments(exchange, plan)))
        with contextlib.suppress(Problem, errors.RequestError):
            body = done(bodies.read(exchange))
            bodies.parameters(body, USED, plan.info.parameters, plan.method)
            inputs_of(body.get("input"))


class Given:
    """Stands for an exchange whose body has come.

    Args:
        content: The body.
    """

    def __init__(self, content: bytes) -> None:
        self.headers: Final = {b"content-type": b"application/json"}
        self.limits: Final = Limits()
        self._content: Final = content

    async def body(self, most_bytes: int) -> bytes:
        """Return it; one that is too long is refused before it is read."""
        return self._content[:most_bytes]


def done(work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits")


class Npy(Target):
    """An array as a file of NumPy's."""

    name = "npy"

    def make(self, rng: random.Random) -> bytes:
        """Return one."""
        array = np.zeros(
            [rng.randint(0, 3) for _ in range(rng.randint(0, 3))], rng.choice(("<f4", "|u1", ">i8", "<c16"))
        )
        return arrays.to_npy(np.asfortranarray(array) if rng.random() < 0.3 else array)

    def mutate(self, rng: random.Random, data: bytes) -> bytes:
        """Return one with something else in its header, or with other bytes."""
        if rng.random() < 0.5:
            return damage(rng, data)
        old, new = rng.choice(
            (
                (b"'<f4'", rng.choice((b"'|O'", b"'<U9'", b"'<f1'", b"'<c3'", b"'<M8'", b"[('a','<f4')]", b"'=f4'"))),
                (
                    b"(",
                    rng.choice(
                        (
                            b"(0,",
                            b"(999999999999999999,",
                            b"(-1,",
                            b"(" + b"1," * 40,
                            b"(" + b" " * 900,
                            b"(" + b"1" * 90 + b"x",
                        )
                    ),
                ),
                (b"False", rng.choice((b"True", b"0", b"__import__('os')"))),
                (b"}", rng.choice((b"", b"}}", b"} " * 9, b"'shape': (1,)}"))),
                (b"v\x00", rng.choice((b"\xff\xff", b"\x00\x00", b"\x00\x10"))),
            )
        )
        return data.replace(old, new, 1)

    def check(self, data: bytes) -> None:
        """Read it, and send on what came."""
        with contextlib.suppress(errors.InvalidRequest):
            array = arrays.from_npy(data)
            values.encode(array)
            with contextlib.suppress(errors.Unsupported):
                results.encode(array, npy=True)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=lambda other: other.tolist()))

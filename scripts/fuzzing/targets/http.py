"""Bodies that come by HTTP: arguments as JSON, by a method's schema, forms with files, and arrays as `.npy`."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Coroutine
from typing import Any, Final

import msgspec
import numpy as np

from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.messages.control import ActorSpec
from atomr_mp.protocol.messages.devices import MethodInfo
from atomr_mp.serve import calls
from atomr_mp.serve.http.limits import Limits
from atomr_mp.serve.openai import bodies, chat, completions, responses
from atomr_mp.serve.openai.inputs import inputs_of
from atomr_mp.serve.openai.parts import TextAnswer
from atomr_mp.serve.problems import Problem
from atomr_mp.serve.values import arrays, multipart, results, schemas
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

PIECES: Final = (
    *(b"\r\n", b"\r\n\r\n", b"\r\n--x y", b"--x y\r\n", b"--", b";", b'"', b"\\", b"%", b"&", b"=", b"\n"),
    *(
        b"; name=",
        b"; filename*=utf-8''x",
        b"content-transfer-encoding: base64\r\n",
        b"multipart/form-data; boundary=x",
    ),
    *(b";" * 3000, b'"' * 3000, b"\\" * 3000, b" " * 3000, b"\r" * 3000, b"a: b\r\n" * 500),
)


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
        return bytes((NAMES.index(name),)) + msgspec.json.encode(found)

    def mutate(self, rng: random.Random, data: bytes) -> bytes:
        """Return a body of another structure, or with other bytes."""
        return data[:1] + _changed(rng, data[1:])

    def check(self, data: bytes) -> None:
        """Make arguments of it."""
        plan = self._plans[NAMES[(data[0] if data else 0) % len(NAMES)]]
        exchange: Any = Given(data[1:])
        with contextlib.suppress(Problem, errors.RequestError):
            values.encode(done(calls.arguments(exchange, plan)))


def _changed(rng: random.Random, body: bytes) -> bytes:
    if rng.random() < 0.5:
        with contextlib.suppress(Exception):  # what has no form in JSON
            changed = trees.mutated(rng, msgspec.msgpack.encode(msgspec.json.decode(body)))
            return msgspec.json.encode(msgspec.msgpack.decode(changed))
    if rng.random() < 0.5:
        at = rng.randint(0, len(body))
        return body[:at] + rng.choice(TEXTS) + body[at + rng.randint(0, 4) :]
    return damage(rng, body)


class OpenaiBodies(Target):
    """Requests in OpenAI's forms, each read as one of all forms."""

    name = "openai"

    def __init__(self) -> None:
        names = ("messages", "tools", "tool_choice", "max_tokens", "response_format")
        info = MethodInfo("say", list(names), idempotent=True, deadline_s=None, doc="")
        self._plans: Final = (
            schemas.plan_of("A.say", info),
            schemas.plan_of("A.say", msgspec.structs.replace(info, parameters=["x"])),
        )

    def make(self, rng: random.Random) -> bytes:
        """Return a request that some form takes."""
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c", "output": "5"}
        content = rng.choice(("a", [{"type": "input_text", "text": "a"}]))
        message = {"role": "user", "content": content}
        fields = {
            "input": rng.choice(("a", ["a", "b"], [1, 2], [message, call, output])),
            "messages": [message],
            "prompt": rng.choice(("a", ["a"], [1])),
            "stream": rng.random() < 0.5,
            "stream_options": {"include_usage": True},
            "tools": [{"type": "function", "name": "f", "parameters": {}}],
            "tool_choice": rng.choice(("auto", "none", {"type": "function", "name": "f"})),
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
            "temperature": 1,
            "n": 1,
        }
        given = {name: value for name, value in fields.items() if rng.random() < 0.6}
        return msgspec.json.encode({"model": "m", **given})

    def mutate(self, rng: random.Random, data: bytes) -> bytes:
        """Return a body of another structure, or with other bytes."""
        return _changed(rng, data)

    def check(self, data: bytes) -> None:
        """Read it as a request of each form, and write an answer that repeats what it says."""
        exchange: Any = Given(data)
        with contextlib.suppress(Problem, errors.InvalidRequest):
            body = {"model": "m", **done(bodies.read(exchange))}
            with contextlib.suppress(Problem):
                inputs_of("input", body.get("input"))
            for form, plan in itertools.product((chat, completions, responses), self._plans):
                with contextlib.suppress(Problem, errors.RequestError):
                    asked = form.read(body, plan)
                    for each in asked.calls:
                        values.encode(plan.arguments(each)[1])
                    results.encode_json(asked.writer.whole([TextAnswer()]))


class Forms(Target):
    """A method's number as a byte, and a form, or a raw body behind a query."""

    name = "forms"

    def __init__(self) -> None:
        methods = load(ActorSpec("Annotated_", ACTOR)).methods
        self._plans: Final = {each.info.name: schemas.plan_of(each.name, each.info) for each in methods}

    def make(self, rng: random.Random) -> bytes:
        """Return a form of arguments that fit, or a query and a raw body."""
        name = rng.choice(NAMES)
        number = bytes((NAMES.index(name),))
        given = dict(zip(PARAMETERS, map(_plain, FITTING[name]), strict=False))
        if rng.random() < 0.3:
            return number + b"a=1&b=%5B%5D&a\n" + rng.randbytes(9)
        parts = [
            b'--x y\r\nContent-Disposition: form-data; name="%b"%b\r\n%b\r\n%b\r\n'
            % (
                *(key.encode(), rng.choice((b"", b'; filename="a\\"b.png"'))),
                *(rng.choice((b"", b"Content-Type: application/json\r\n", b"content-type:application/x-npy\r\n")),),
                *(value.encode() if isinstance(value, str) else msgspec.json.encode(value),),
            )
            for key, value in given.items()
        ]
        return number + b"".join([*parts, b"--x y--\r\n"])

    def mutate(self, rng: random.Random, data: bytes) -> bytes:
        """Return one with other bytes, or with a piece of a form's own in the middle."""
        if rng.random() < 0.5:
            return damage(rng, data)
        at = rng.randint(0, len(data))
        return data[:at] + rng.choice(PIECES) + data[at + rng.randint(0, 4) :]

    def check(self, data: bytes) -> None:
        """Make arguments of it."""
        plan = self._plans[NAMES[(data[0] if data else 0) % len(NAMES)]]
        exchange: Any = Given(data[1:], b'multipart/form-data; boundary="x y"')
        with contextlib.suppress(Problem, errors.RequestError):
            values.encode(done(calls.arguments(exchange, plan)))
        query, _, body = data[1:].partition(b"\n")
        exchange = Given(body, b"image/png", query)
        with contextlib.suppress(Problem, errors.RequestError):
            values.encode(done(calls.arguments(exchange, plan)))
        with contextlib.suppress(Problem):
            multipart.parts_of(body, query, 9)


class Given:
    """Stands for an exchange whose body has come.

    Args:
        content: The body.
        content_type: Its type.
        query: The address's query.
    """

    def __init__(self, content: bytes, content_type: bytes = b"application/json", query: bytes = b"") -> None:
        self.headers: Final = {b"content-type": content_type}
        self.scope: Final = {"query_string": query}
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
                results.encode(array, results.NPY)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=lambda other: other.tolist()))

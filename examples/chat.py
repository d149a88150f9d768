"""Text from a small transformer, many prompts at a time, through kills: continuous batching by `Steps`.

    python examples/chat.py

The model has two layers, a cache of keys and values for each stream, and random weights of a fixed seed: what it says
makes no sense, but is the same each time. `Chat` is the actor: each step adds a character to every stream that runs.
`generate` is its client: it goes on behind what it has when a worker is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

import atomr_mp
from atomr_mp import errors
from atomr_mp_workers import Actor, Context, Live, Steps, method

FIRST: Final = 32
"""The characters are those from the blank to the tilde."""

CHARACTERS: Final = 95
WIDTH, HEADS, LAYERS, LONGEST = 32, 4, 2, 512

Array = NDArray[np.float64]


class Prompt(msgspec.Struct):
    """The argument of a call."""

    text: str
    length: int = 32
    """Characters to generate."""


class Cache:
    """The keys and values of one text so far, in each layer."""

    def __init__(self) -> None:
        self.keys = np.zeros((LAYERS, LONGEST, WIDTH))
        self.values = np.zeros((LAYERS, LONGEST, WIDTH))
        self.length = 0


class Transformer:
    """Two layers of attention and a feed-forward network each, in float64."""

    def __init__(self, seed: int = 0) -> None:
        random = np.random.default_rng(seed)

        def matrix(rows: int, columns: int) -> Array:
            return random.normal(0, rows**-0.5, (rows, columns))

        self._embedding = random.normal(0, 1, (CHARACTERS, WIDTH))
        self._places = random.normal(0, 1, (LONGEST, WIDTH))
        self._layers = [
            (matrix(WIDTH, 3 * WIDTH), matrix(WIDTH, WIDTH), matrix(WIDTH, 4 * WIDTH), matrix(4 * WIDTH, WIDTH))
            for _ in range(LAYERS)
        ]

    def step(self, tokens: list[int], caches: list[Cache]) -> list[int]:
        """Take in one token of each text; return the one that is likeliest to come next."""
        at = [cache.length for cache in caches]
        x = self._embedding[tokens] + self._places[at]
        for layer, (attention, joined, widened, narrowed) in enumerate(self._layers):
            queries, keys, values = np.split(_normal(x) @ attention, 3, axis=1)
            seen = np.empty_like(x)
            for row, cache in enumerate(caches):
                cache.keys[layer, at[row]], cache.values[layer, at[row]] = keys[row], values[row]
                seen[row] = _attend(queries[row], cache.keys[layer, : at[row] + 1], cache.values[layer, : at[row] + 1])
            x = x + seen @ joined
            x = x + np.maximum(_normal(x) @ widened, 0) @ narrowed
        for cache in caches:
            cache.length += 1
        scores = _normal(x) @ self._embedding.T
        # Rounded: which texts share a step changes the last digits, and must not change what is said.
        return [int(token) for token in scores.round(6).argmax(axis=1)]


class Chat(Actor):
    """Continues texts, all that run now in one step."""

    def setup(self, context: Context) -> None:
        """Make the model."""
        self._model = Transformer()
        context.log.info("the model has %d layers", LAYERS)
        self._caches: dict[int, Cache] = {}
        self._next: dict[int, int] = {}
        self._left: dict[int, int] = {}

    @method(thread=True, batch=Steps(max_items=64), idempotent=True)
    def chat(self, live: Live[Prompt, str]) -> None:
        """Add a character to each text."""
        for each in live.gone:
            self._forget(each.id)
        for each in live.new:
            text = each.arguments.text or " "
            if len(text) + each.arguments.length > LONGEST:
                each.fail(errors.InvalidRequest(f"a text and its continuation have at most {LONGEST} characters"))
                continue
            cache = self._caches[each.id] = Cache()
            self._left[each.id] = each.arguments.length
            for character in text:
                (self._next[each.id],) = self._model.step([_token(character)], [cache])
        ready = [each for each in live.ready if each.id in self._caches]
        for each in ready:
            if self._left[each.id]:
                each.send(chr(FIRST + self._next[each.id]))
                self._left[each.id] -= 1
            if not self._left[each.id]:
                each.end()
                self._forget(each.id)
        going = [each.id for each in ready if not each.over]
        if going:
            tokens = self._model.step([self._next[i] for i in going], [self._caches[i] for i in going])
            self._next.update(zip(going, tokens, strict=True))

    def _forget(self, stream: int) -> None:
        for each in (self._caches, self._next, self._left):
            each.pop(stream, None)


def _normal(x: Array) -> Array:
    normal: Array = (x - x.mean(axis=-1, keepdims=True)) / (x.std(axis=-1, keepdims=True) + 1e-6)
    return normal


def _attend(query: Array, keys: Array, values: Array) -> Array:
    """Return the attention of a text's last place to all its places: (WIDTH,), from (n, WIDTH)."""
    heads = WIDTH // HEADS
    scores = np.einsum("hd,nhd->hn", query.reshape(HEADS, heads), keys.reshape(-1, HEADS, heads)) / heads**0.5
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    seen: Array = np.einsum("hn,nhd->hd", weights, values.reshape(-1, HEADS, heads)).reshape(WIDTH)
    return seen


def _token(character: str) -> int:
    return min(max(ord(character) - FIRST, 0), CHARACTERS - 1)


async def generate(pool: atomr_mp.Pool, prompt: str, length: int) -> str:
    """Return a continuation, whatever ends meanwhile: what has come is part of the next prompt."""
    text = ""
    while len(text) < length:
        try:
            async with pool.stream("Chat.chat", Prompt(prompt + text, length - len(text))) as parts:
                async for part in parts:
                    text += part
        except (errors.WorkerLost, errors.ContextPoisoned, errors.WorkerHung) as lost:
            print(f"{prompt!r} lost its worker after {lost.parts} characters, and goes on")
    return text


async def generate_all(pool: atomr_mp.Pool, prompts: list[str], length: int) -> list[str]:
    """Return the continuations of many prompts, which share the model's steps."""
    return await asyncio.gather(*(generate(pool, prompt, length) for prompt in prompts))


async def main() -> None:
    """Continue some texts while workers are killed."""
    prompts = [f"{number} times upon" for number in range(20)]
    with atomr_mp.start(actors=[f"{__file__}:Chat"], gpus=2, backend="host") as pool:
        undisturbed = await generate_all(pool, prompts, 400)
        disturbed = asyncio.create_task(generate_all(pool, prompts, 400))
        for device in (0, 1):
            await asyncio.sleep(0.3)
            os.kill(pool.devices[device].pid, signal.SIGKILL)
        assert await disturbed == undisturbed
        for prompt, text in zip(prompts, undisturbed, strict=True):
            print(f"{prompt}: {text[:40]}…")


if __name__ == "__main__":
    asyncio.run(main())

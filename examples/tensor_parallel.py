"""Tensor parallelism: one model over all devices, through the death of one of them.

    python examples/tensor_parallel.py
    atomr-mp serve --actor examples/tensor_parallel.py:TensorParallel --backend host --gpus 2 --world 0,1 --standby hot

Each rank has some heads and hidden units, and the ranks sum what these give: twice in a block. The program compares
two devices with one, and kills a rank in the middle of four chats. They go on in the next epoch, and each text is the
one of the undisturbed world. The command serves the model to OpenAI's clients.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Generator
from time import perf_counter, sleep
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

import atomr_mp
from atomr_mp import errors
from atomr_mp_workers import Actor, Context, method
from tensor_parallel_model import HEADS, LONGEST, Model, draw, draw_weights, layout, tokens_of

TOLERANCE: Final = {"host": 1e-4, "cuda": 0.05}
"""How far scores may be from those of one device: sums are taken in another order, on GPUs of bfloat16."""

PROMPTS: Final = [f"{number} times upon a time" for number in range(4)]
LENGTH: Final = 300
"""Tokens of each answer."""


class TensorParallel(Actor):
    """Continues chats; its world's size divides `HEADS`."""

    def setup(self, context: Context) -> None:
        """Map this rank's weights. Only the first process of a rank draws them; later ones and standbys find them."""
        world = context.world
        if world is None or HEADS % world.size:
            raise errors.Unrecoverable(f"the actor needs a world whose size divides {HEADS}")
        self._xp: Any = np
        if context.backend == "cuda":
            import cupy

            self._xp = cupy
        weights = context.resident(
            f"tensor-parallel-{world.rank}-of-{world.size}",
            layout(world.size, "bfloat16" if context.backend == "cuda" else "float32"),
            version="1",
            fill=lambda arrays: draw_weights(arrays, world.rank, world.size, self._xp),
        )
        self._model = Model(weights, world.all_reduce, self._xp)
        self.scores("Nobody waits for other ranks here, so a standby is warm.")

    @method(thread=True, resumable=True, openai="chat")
    def chat(
        self,
        messages: list[dict[str, Any]],
        sent: list[str],
        max_tokens: int = 64,
        temperature: float = 1.0,
        seed: int | None = None,
    ) -> Generator[str, None, dict[str, Any]]:
        """Continue a chat.

        The cache is this stream's, and both end with the world's epoch. In the next one the stream begins anew, with
        what its reader has. That is computed token by token as before, so that the cache gets the same bits.
        """
        prompt = tokens_of("\n".join(str(message.get("content") or "") for message in messages) + "\n")
        if len(prompt) + max_tokens > LONGEST:
            raise errors.InvalidRequest(f"a prompt and its answer have at most {LONGEST} tokens")
        cache = self._model.cache(len(prompt) + max_tokens)
        scores = self._model.scores(prompt, cache)
        for place in range(max_tokens):
            if place < len(sent):
                token = ord(sent[place])
            else:  # the same on all ranks: their scores have the same bits
                token = draw(self._host(scores), temperature, seed or 0, place)
                yield chr(token)
            scores = self._model.scores([token], cache)
        return {
            "finish_reason": "length",
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": max_tokens},
        }

    @method(thread=True, idempotent=True)
    def scores(self, text: str) -> NDArray[np.float32]:
        """Return the scores of what may follow a text."""
        tokens = tokens_of(text)
        return self._host(self._model.scores(tokens, self._model.cache(len(tokens))))

    def _host(self, found: Any) -> NDArray[np.float32]:
        copied: NDArray[np.float32] = found if self._xp is np else self._xp.asnumpy(found)
        return copied


class Reader:
    """Reads a chat, and measures the longest time between two tokens."""

    def __init__(self, number: int) -> None:
        self.arguments = {
            "messages": [{"role": "user", "content": PROMPTS[number]}],
            "max_tokens": LENGTH,
            "temperature": number % 2,  # some have the likeliest tokens, others are drawn
            "seed": number,
        }
        self.text = ""
        self.longest_s = 0.0
        self.in_the_middle = asyncio.Event()

    async def read(self, world: atomr_mp.World) -> None:
        """Read to the end, whatever becomes of the members."""
        async with world.stream("TensorParallel.chat", kwargs=self.arguments) as parts:
            before = perf_counter()
            async for part in parts:
                self.text += part
                self.longest_s, before = max(self.longest_s, perf_counter() - before), perf_counter()
                if len(self.text) == LENGTH // 2:
                    self.in_the_middle.set()


async def read_all(world: atomr_mp.World, victim: int | None = None) -> list[Reader]:
    """Read four chats at the same time; kill a process, if one is named, when all are in the middle."""
    readers = [Reader(number) for number in range(len(PROMPTS))]
    async with asyncio.TaskGroup() as reading:
        for reader in readers:
            reading.create_task(reader.read(world))
        for reader in readers:
            await reader.in_the_middle.wait()
        if victim is not None:
            os.kill(victim, signal.SIGKILL)
            print("killed the last rank when the chats had", *(len(reader.text) for reader in readers), "tokens")
    return readers


def start(backend: Literal["host", "cuda"], size: int) -> atomr_mp.Pool:
    """Start a pool with a world over all devices."""
    worlds = {"tp": {"devices": list(range(size)), "actors": ["TensorParallel"]}}
    actors = [f"{__file__}:TensorParallel"]
    pool = atomr_mp.start(actors=actors, gpus=size, backend=backend, standby="hot", worlds=worlds)
    pool.world("tp").wait_ready()
    return pool


def main() -> None:
    """Compare several devices with one, then read chats undisturbed and through a rank's death."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--backend", default="host", choices=list(TOLERANCE))
    parser.add_argument("--devices", type=int, default=2, help="1, 2, 4 or 8")
    options = parser.parse_args()
    print("this takes about five seconds")
    with start(options.backend, 1) as pool:
        alone = [pool.world("tp").call("TensorParallel.scores", prompt).result() for prompt in PROMPTS]
    with start(options.backend, options.devices) as pool:
        world = pool.world("tp")
        together = [world.call("TensorParallel.scores", prompt).result() for prompt in PROMPTS]
        apart = float(np.abs(np.subtract(together, alone)).max())
        assert apart <= TOLERANCE[options.backend]
        print(f"scores differ from those of one device by {apart:.1e} at most")
        before = asyncio.run(read_all(world))
        while any(device.standby is None for device in pool.devices):
            sleep(0.01)
        killed = asyncio.run(read_all(world, pool.devices[-1].pid))
        after = asyncio.run(read_all(world))
    for reader, *others in zip(killed, before, after, strict=True):
        assert all(other.text == reader.text for other in others)
        longest = [f"{each.longest_s * 1e3:.0f}" for each in (reader, *others)]
        print(f"{reader.text[:40]}… waited {longest[0]} ms at most; {' and '.join(longest[1:])} ms undisturbed")
    print("each text is the one of the undisturbed world")


if __name__ == "__main__":
    main()

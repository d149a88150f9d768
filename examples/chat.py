"""Text from a small transformer, many chats at a time, through kills: continuous batching by `Steps`, in torch.

    pip install torch
    python examples/chat.py

`Chat` is the actor: each step adds a character to every chat that runs. The program kills its worker in the middle of
eight chats. Their streams go on in the standby, and each text is the one that an undisturbed worker gives.
"""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Annotated, Final

import msgspec
import torch

import atomr_mp
from atomr_mp import errors
from atomr_mp_workers import Actor, Context, Live, LiveStream, Steps, method
from chat_model import FIRST, LONGEST, Transformer, draw, tokens_of

SLOTS: Final = 32
"""Chats that run at a time; others wait for their turn."""


class Prompt(msgspec.Struct):
    """The argument of a call."""

    text: Annotated[str, msgspec.Meta(min_length=1)]
    length: int = 64
    """Characters to add."""
    seed: Annotated[int, msgspec.Meta(ge=0, lt=2**40)] = 0


@dataclass
class Running:
    """A chat that runs: its slot in the cache, its tokens so far, and how many it will have."""

    slot: int
    tokens: list[int]
    end: int


class Chat(Actor):
    """Continues texts, all that run now in one step."""

    def setup(self, context: Context) -> None:
        """Make the model."""
        torch.set_num_threads(1)  # so small a model is no faster on more
        self._model = Transformer(SLOTS)
        self._free = list(range(SLOTS))
        self._running: dict[int, Running] = {}
        context.log.info("%d chats can run at a time", SLOTS)

    @method(thread=True, batch=Steps(max_items=SLOTS), resumable=True)
    def chat(self, live: Live[Prompt, str]) -> None:
        """Add a character to each text."""
        with torch.inference_mode():
            for each in live.gone:  # its reader has left, or it was late
                self._forget(each)
            for each in live.new:
                self._begin(each)
            for each in live.ready:
                chat = self._running[each.id]
                if len(chat.tokens) >= chat.end:
                    each.end()
                    self._forget(each)
            going = [(each, self._running[each.id]) for each in live.ready]
            if not going:
                return
            scores = self._model.scores(
                [chat.tokens[-1:] for _, chat in going],
                [chat.slot for _, chat in going],
                [len(chat.tokens) - 1 for _, chat in going],
            )
            for (each, chat), row in zip(going, scores, strict=True):
                chat.tokens.append(draw(row, each.arguments.seed, len(chat.tokens)))
                each.send(chr(FIRST + chat.tokens[-1]))

    def _begin(self, each: LiveStream[Prompt, str]) -> None:
        """Give a chat a slot, and fill the cache; if its worker has died, with what its reader has as well."""
        text = each.arguments.text + "".join(each.sent)
        end = len(each.arguments.text) + each.arguments.length
        if end > LONGEST:
            each.fail(errors.InvalidRequest(f"a text and its continuation have at most {LONGEST} characters"))
            return
        chat = self._running[each.id] = Running(self._free.pop(), tokens_of(text), end)
        if len(text) > 1:  # the last token is the first of the steps
            self._model.scores([chat.tokens[:-1]], [chat.slot], [0])

    def _forget(self, each: LiveStream[Prompt, str]) -> None:
        chat = self._running.pop(each.id, None)
        if chat is not None:
            self._free.append(chat.slot)


class Reader:
    """Reads a chat, and measures the longest time between two characters."""

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt
        self.text = ""
        self.longest_s = 0.0
        self.in_the_middle = asyncio.Event()

    async def read(self, pool: atomr_mp.Pool) -> None:
        """Read to the end, whatever becomes of the worker."""
        async with pool.stream("Chat.chat", self.prompt) as parts:
            before = perf_counter()
            async for part in parts:
                self.text += part
                self.longest_s, before = max(self.longest_s, perf_counter() - before), perf_counter()
                if len(self.text) == self.prompt.length // 2:
                    self.in_the_middle.set()


async def read_all(pool: atomr_mp.Pool, prompts: list[Prompt], *, kill: bool) -> list[Reader]:
    """Read chats at the same time; kill the worker when all are in the middle."""
    readers = [Reader(prompt) for prompt in prompts]
    async with asyncio.TaskGroup() as reading:
        for reader in readers:
            reading.create_task(reader.read(pool))
        for reader in readers:
            await reader.in_the_middle.wait()
        if kill:
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            print("killed the worker when the chats had", *(len(reader.text) for reader in readers), "characters")
    return readers


def main() -> None:
    """Read eight chats, undisturbed and through a kill."""
    prompts = [Prompt(f"{number} times upon a time", 300, seed=number) for number in range(8)]
    with atomr_mp.start(actors=[f"{__file__}:Chat"], gpus=1, backend="host", standby="hot") as pool:
        undisturbed = asyncio.run(read_all(pool, prompts, kill=False))
        while pool.devices[0].standby is None:
            sleep(0.01)
        disturbed = asyncio.run(read_all(pool, prompts, kill=True))
    for before, after in zip(undisturbed, disturbed, strict=True):
        assert after.text == before.text
        print(f"{after.prompt.text}: {after.text[:30]}… waited {after.longest_s * 1e3:.0f} ms at most")
    print("each text is the one of the undisturbed worker")


if __name__ == "__main__":
    main()

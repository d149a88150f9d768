"""A toy that chats in a world, for tests of OpenAI's form: all texts that run now get a letter in each step."""

from __future__ import annotations

from typing import Any

import numpy as np

from atomr_mp_workers import Actor, Context, Live, Steps, method

LETTERS = 26
WIDTH = 64


class WorldlyChat(Actor):
    """Each rank has some columns of its weights; the next letter is that of the greatest sum over ranks."""

    def setup(self, context: Context) -> None:
        """Make the weights."""
        assert context.world is not None
        self.world = context.world
        mine = np.arange(WIDTH)[self.world.rank :: self.world.size]
        everything = np.random.default_rng(7).standard_normal((2 * LETTERS, WIDTH))
        self.coming, self.going = everything[:LETTERS, mine], everything[LETTERS:, mine].T
        self.most = 0

    @method(thread=True, batch=Steps(max_items=8), resumable=True, openai="chat")
    def chat(self, live: Live[list[dict[str, Any]], str]) -> None:
        """Say as many letters as the last message says, behind the letter that it ends with."""
        ready = live.ready
        self.most = max(self.most, len(ready))
        said: dict[int, str] = getattr(self, "said", {})
        self.said = {each.id: said.get(each.id, "".join(each.sent)) for each in live}
        if not ready:
            return
        last = []
        for each in ready:
            text = each.arguments[-1]["content"] + self.said[each.id]
            last.append(ord(text[-1]) - ord("a"))
        # One sum for all of them: the ranks would not meet if they had different texts.
        scores = self.world.all_reduce(np.tanh(self.coming[last] * 3) @ self.going)
        for each, row in zip(ready, scores, strict=True):
            count, said_by = int(each.arguments[-1]["content"].split()[0]), self.said[each.id]
            if len(said_by) == count:
                each.end()
                continue
            letter = chr(ord("a") + int(row.argmax()))
            self.said[each.id] = said_by + letter
            each.send(letter)

    @method(idempotent=True)
    def together(self) -> int:
        """Return how many texts have had a letter in one step at most."""
        return self.most

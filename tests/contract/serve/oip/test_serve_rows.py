"""Models whose requests are joined by their rows, asked by Triton's own clients over HTTP and gRPC at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest
import tritonclient.http.aio as http
from tritonclient.utils import InferenceServerException

from tests.inferring import bearer, client_of
from tests.inferring import tensor as grpc_tensor
from tests.serving import Server
from tests.support import ACTORS, Ledger, in_loop

TABLES: Final = f"{ACTORS}/oip_tables.py:Tables"

TOML: Final = """
[joined]
method = "Tables.joined"
max_batch_size = 3
inputs.x = { shape = [-1] }
outputs.sums = { shape = [2] }

[wide]
method = "Tables.joined"
max_batch_size = 5
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of one front end with models of a table."""
    with Ledger() as ledger:
        (ledger.path / "models.toml").write_text(TOML, encoding="utf-8")
        with Server(ledger, "--grpc-port", "0", "--models", ledger.path / "models.toml", actor=TABLES) as own:
            yield own


def made(tensor: Any, value: int, rows: int) -> list[Any]:
    """Return the inputs of a request."""
    names = np.array([[f"{value}".encode()]] * rows, object)
    return [tensor("x", np.full((rows, 3), value, np.float32)), tensor("names", names, "BYTES")]


def http_tensor(name: str, array: np.ndarray[Any, Any], datatype: str = "FP32") -> Any:
    """Return an input over HTTP."""
    found = http.InferInput(name, list(array.shape), datatype)
    found.set_data_from_numpy(array)
    return found


def test_requests_over_http_and_grpc_are_one_execution(server: Server) -> None:
    """Each has its own rows, and the statistics count the batch once, by its rows, as Triton does."""

    async def ask() -> list[Any]:
        with client_of(server) as over_grpc:
            async with http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
                by_grpc = asyncio.to_thread(over_grpc.infer, "joined", made(grpc_tensor, 7, 1), headers=bearer(server))
                by_http = client.infer("joined", made(http_tensor, 5, 3), headers=bearer(server))
                answers = await asyncio.gather(by_http, by_grpc)
                told = await client.get_inference_statistics("joined", headers=bearer(server))
                return [
                    *answers,
                    told["model_stats"][0],
                    await client.get_model_config("joined", headers=bearer(server)),
                ]

    first, second, told, config = in_loop(ask)
    assert first.as_numpy("sums").tolist() == [[15.0, 4.0]] * 3
    assert second.as_numpy("sums").tolist() == [[21.0, 4.0]]
    assert first.as_numpy("named").tolist() == [b"5"] * 3
    assert second.as_numpy("named").tolist() == [b"7"]
    assert (told["inference_count"], told["execution_count"]) == (4, 1)
    assert told["inference_stats"]["success"]["count"] == 2
    (batch,) = told["batch_stats"]
    assert (batch["batch_size"], batch["compute_infer"]["count"]) == (4, 1)
    assert config["max_batch_size"] == 3
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 30_000_000


def test_a_model_of_more_rows_than_its_method_takes_does_not_fit(server: Server) -> None:
    """It says so, and the others answer."""
    with client_of(server) as client:
        assert not client.is_model_ready("wide", headers=bearer(server))
        with pytest.raises(InferenceServerException, match=r"Tables\.joined takes at most 4 rows"):
            client.infer("wide", made(grpc_tensor, 1, 1), headers=bearer(server))

"""What clients of gRPC see of processes that die."""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc
import numpy as np
import pytest

from tests.crash.services.client_load import ClientLoad
from tests.crash.services.test_serve_killed import HOT, pool_of
from tests.inferring import ADD_SUB, INFERRED, bearer, message, numbers, pair, stub_of, tensor, texts
from tests.serving import Server
from tests.support import ACTORS, DEADLINE_S, Ledger, settled, standby_of, wait_generation

CLIENTS: Final = 3

COUNTING: Final = f"{ACTORS}/counting.py:Counting"
UPTO: Final = 400


class InferenceLoad(ClientLoad):
    """Clients that add again and again and look at the sums: some by calls, and one by a stream.

    Args:
        server: The server.
    """

    def __init__(self, server: Server) -> None:
        self._server: Final = server
        self._metadata: Final = tuple(bearer(server).items())
        super().__init__([*[functools.partial(self._call, each) for each in range(CLIENTS)], self._stream])

    def _call(self, number: int) -> None:
        with stub_of(self._server) as stub:
            while not self.stopped.is_set():
                value = self.counts[number]
                try:
                    answer = stub.ModelInfer(
                        message(ADD_SUB, pair([value], [number])), metadata=self._metadata, timeout=DEADLINE_S
                    )
                except grpc.RpcError as error:
                    self.wrong.append(str(error))
                    return
                self._look(number, answer, value + number)

    def _stream(self) -> None:
        room, sent = threading.Semaphore(16), 0

        def requests() -> Iterator[Any]:
            nonlocal sent
            while not self.stopped.is_set():
                room.acquire()
                yield message(ADD_SUB, pair([sent], [1]), id=str(sent))
                sent += 1

        with stub_of(self._server) as stub:
            try:
                for answer in stub.ModelStreamInfer(requests(), metadata=self._metadata):
                    room.release()
                    found = answer.infer_response
                    if answer.error_message:
                        self.wrong.append(answer.error_message)
                        return
                    self._look(CLIENTS, found, int(found.id) + 1)
            except grpc.RpcError as error:
                self.wrong.append(str(error))

    def _look(self, number: int, answer: Any, expected: int) -> None:
        names = [each.name for each in answer.outputs]
        total = np.frombuffer(answer.raw_output_contents[names.index("total")], np.int32).tolist()
        if total == [expected]:
            self.counts[number] += 1
        else:
            self.wrong.append(f"{total} is not {expected}")


def test_workers_are_killed_under_load_and_every_call_is_answered_right(ledger: Ledger) -> None:
    """A hot standby and an idempotent method make it so, by calls and by a stream."""
    with (
        Server(ledger, *HOT, "--grpc-port", "0", actor=INFERRED) as server,
        pool_of(ledger) as pool,
        InferenceLoad(server) as load,
    ):
        for generation in range(1, 4):
            assert settled(lambda: standby_of(pool).state == "ready")
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            wait_generation(pool, generation + 1)
            load.more()
    assert not load.wrong


def test_a_call_that_dies_with_its_worker_has_a_status_by_whether_it_may_have_run(ledger: Ledger) -> None:
    """INTERNAL for what ran; UNAVAILABLE, which clients send again, for what certainly did not."""
    with (
        Server(ledger, "--grpc-port", "0", actor=INFERRED) as server,
        pool_of(ledger) as pool,
        ledger.gate("running") as gate,
        stub_of(server) as stub,
    ):
        metadata = tuple(bearer(server).items())
        found = message("Inferred.wait_at", [tensor("gate", texts(gate.path))])
        calls = [stub.ModelInfer.future(found, metadata=metadata) for _ in range(4)]
        gate.wait(4)  # as many as the actor has threads
        waiting = stub.ModelInfer.future(found, metadata=metadata)
        assert settled(lambda: pool.status().devices[0].queue_depth >= 5)
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        for call in calls:
            assert call.exception(timeout=DEADLINE_S).code() is grpc.StatusCode.INTERNAL
            assert "SIGKILL" in call.details()
            assert "retry-after" not in dict(call.trailing_metadata())
        assert waiting.exception(timeout=DEADLINE_S).code() is grpc.StatusCode.UNAVAILABLE
        assert int(dict(waiting.trailing_metadata())["retry-after"]) >= 1
        wait_generation(pool, 2)
        assert stub.ModelInfer(message(ADD_SUB, pair()), metadata=metadata, timeout=DEADLINE_S).outputs


def test_a_front_end_that_dies_costs_its_own_connections_only(ledger: Ledger) -> None:
    """Clients connect to another one, and to the next; the port stays the server's."""
    with Server(ledger, "--workers", "2", "--grpc-port", "0", actor=INFERRED) as server:
        metadata = tuple(bearer(server).items())

        def is_answered() -> bool:
            with stub_of(server) as stub:
                try:
                    return bool(stub.ModelInfer(message(ADD_SUB, pair()), metadata=metadata, timeout=5).outputs)
                except grpc.RpcError:
                    return False

        for _ in range(3):
            before = server.front_ends()
            assert len(before) == 2
            os.kill(before[0], signal.SIGKILL)
            assert settled(is_answered)
            assert settled(lambda: len(set(server.front_ends()) - {before[0]}) == 2)  # noqa: B023 - called at once
        assert settled(is_answered)


def counted_by_stream(server: Server, model: str) -> Iterator[int | str]:
    """Yield the numbers that a decoupled model counts over gRPC, and the error at its end."""
    with stub_of(server) as stub:
        asked = message(model, [tensor("upto", numbers(UPTO))])
        for answer in stub.ModelStreamInfer(iter([asked]), metadata=tuple(bearer(server).items()), timeout=DEADLINE_S):
            if answer.error_message:
                yield answer.error_message
            else:
                (content,) = answer.infer_response.raw_output_contents
                yield int(np.frombuffer(content, np.int64)[0])


def counted_by_events(server: Server, model: str) -> Iterator[int | str]:
    """Yield the same over HTTP."""
    with server.client() as connection:
        body, headers = json.dumps({"upto": UPTO}), bearer(server)
        connection.request("POST", f"/v2/models/{model}/generate_stream", body, headers)
        for line in connection.getresponse():
            if line.startswith(b"data: "):
                told = json.loads(line.removeprefix(b"data: "))
                yield told["error"] if "error" in told else told["output"]


@pytest.mark.parametrize("counted", [counted_by_stream, counted_by_events])
@pytest.mark.parametrize("method", ["plain", "again", "start", "sent"])
def test_a_decoupled_model_goes_on_after_its_workers_death_or_says_how_far_it_was(
    ledger: Ledger, counted: Callable[[Server, str], Iterator[int | str]], method: str
) -> None:
    """One that is resumable loses and repeats no response; any other ends with an error, after so many."""
    with Server(ledger, *HOT, "--grpc-port", "0", actor=COUNTING) as server, pool_of(ledger) as pool:
        assert settled(lambda: standby_of(pool).state == "ready")
        found: list[int | str] = []
        for each in counted(server, f"Counting.{method}"):
            found.append(each)
            if len(found) == UPTO // 8:
                os.kill(pool.devices[0].pid, signal.SIGKILL)
    if method in {"start", "sent"}:
        assert found == list(range(UPTO))
    else:
        *parts, error = found
        assert parts == list(range(len(parts)))
        assert isinstance(error, str)
        assert error.startswith(f"after {len(parts)} responses: ")
        assert "SIGKILL" in error

"""Sequences while workers and front ends die: each client has to begin anew, and none gets a wrong sum."""

from __future__ import annotations

import functools
import os
import random
import signal
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
import pytest

from tests.contract.serve.oip.test_serve_sequences import ACTOR, START, described, post, total
from tests.crash.services.client_load import ClientLoad
from tests.crash.services.test_serve_killed import pool_of
from tests.inferring import bearer, message, stub_of, tensor, texts
from tests.serving import Server
from tests.support import DEADLINE_S, Ledger, settled, wait_generation

CLIENTS: Final = 6
OPTIONS: Final = ("--workers", "3", "--gpus", "2", "--grpc-port", "0")
RESTARTS: Final = ("--set", "max_restarts=1000", "--set", "backoff_initial_s=0.05")


def request(value: int, sequence: int, *, start: bool = False, end: bool = False, gate: str = "") -> Any:
    """Return a request of a sequence as a message; with a gate it waits there."""
    inputs = [tensor("value", np.array([value], np.int64)), *([tensor("gate", texts(gate))] if gate else [])]
    found = message("held" if gate else "sums", inputs)
    found.parameters["sequence_id"].int64_param = sequence
    found.parameters["sequence_start"].bool_param = start
    found.parameters["sequence_end"].bool_param = end
    return found


def sum_in(answer: Any) -> int:
    """Return the sum in an answer."""
    names = [each.name for each in answer.outputs]
    return int(np.frombuffer(answer.raw_output_contents[names.index("total")], np.int64)[0])


class SequenceLoad(ClientLoad):
    """Clients that each add random numbers to some sequences of their own, and look at the sums.

    A client goes on with a sequence after an error that says that nothing ran, and else begins it anew.

    Args:
        server: The server.
    """

    def __init__(self, server: Server) -> None:
        self._server: Final = server
        self._metadata: Final = tuple(bearer(server).items())
        self.told: Final = [0] * CLIENTS
        """How often each client had to begin a sequence anew."""
        super().__init__([functools.partial(self._run, each) for each in range(CLIENTS)])

    def _run(self, client: int) -> None:
        rng = random.Random(client)
        sums: dict[int, int] = {}
        while not self.stopped.is_set():
            with stub_of(self._server) as stub:
                self._ask(stub, client, sums, rng)

    def _ask(self, stub: Any, client: int, sums: dict[int, int], rng: random.Random) -> None:
        """Ask on one connection until that is lost."""
        while not self.stopped.is_set():
            sequence, value = 1 + client * 10 + rng.randrange(5), rng.randrange(1000)
            start, end = sequence not in sums, rng.random() < 0.1
            asked = request(value, sequence, start=start, end=end)
            try:
                found = sum_in(stub.ModelInfer(asked, metadata=self._metadata, timeout=DEADLINE_S))
            except grpc.RpcError as error:
                code, text = error.code(), str(error.details())
                trailing = dict(error.trailing_metadata() or ())
                if "retry-after" in trailing and "begin it anew" not in text:
                    if start:
                        sums.pop(sequence, None)
                    continue  # certainly not run, and the sequence is as it was
                sums.pop(sequence, None)
                if START in text or "begin it anew" in text:
                    self.told[client] += 1
                elif code is not grpc.StatusCode.UNAVAILABLE:  # else its connection is lost
                    self.wrong.append(f"{code} {text}")
                    return
                else:
                    return
                continue
            expected = value + sums.get(sequence, 0)
            if found != expected:
                self.wrong.append(f"{found} is not {expected} in sequence {sequence}")
                return
            self.counts[client] += not start
            sums[sequence] = expected
            if end:
                del sums[sequence]


@pytest.mark.parametrize("standby", ["none", "hot"])
def test_workers_are_killed_and_no_sum_is_wrong(ledger: Ledger, tmp_path: Path, standby: str) -> None:
    """Sequences of a dead worker begin anew, those of the other go on; some requests run when their worker dies."""
    options = (*OPTIONS, *RESTARTS, "--standby", standby, *described(tmp_path))
    with Server(ledger, *options, actor=ACTOR) as server, pool_of(ledger) as pool, SequenceLoad(server) as load:
        for at in range(6):
            device = at % 2
            before = pool.devices[device]
            os.kill(before.pid, signal.SIGKILL)
            wait_generation(pool, before.generation + 1, device)
            load.more()
        assert sum(load.told) >= 6
    assert not load.wrong


def test_front_ends_are_killed_and_no_sum_is_wrong(ledger: Ledger, tmp_path: Path) -> None:
    """A sequence without a request in flight goes on in another front end."""
    with Server(ledger, *OPTIONS, *described(tmp_path), actor=ACTOR) as server, SequenceLoad(server) as load:
        for _ in range(4):
            before = server.front_ends()
            os.kill(before[0], signal.SIGKILL)
            assert settled(lambda: len(set(server.front_ends()) - {before[0]}) == 3)  # noqa: B023 - called at once
            load.more()
    assert not load.wrong


def test_actors_are_reloaded_and_no_sum_is_wrong(ledger: Ledger, tmp_path: Path) -> None:
    """The workers finish their requests; the states that they had are gone, and each client has to begin anew."""
    with (
        Server(ledger, *OPTIONS, *described(tmp_path), actor=ACTOR) as server,
        pool_of(ledger) as pool,
        SequenceLoad(server) as load,
    ):
        for _ in range(2):
            before = [each.generation for each in pool.devices]
            server.process.send_signal(signal.SIGHUP)
            for device, generation in enumerate(before):
                wait_generation(pool, generation + 1, device)
            load.more()
        assert all(load.told)
    assert not load.wrong


def test_a_front_end_that_dies_leaves_what_it_ran_in_doubt(ledger: Ledger, tmp_path: Path) -> None:
    """The sequence of its request has to begin anew; one that had no request goes on, in its worker."""
    with (
        Server(ledger, *OPTIONS, *described(tmp_path), actor=ACTOR) as server,
        ledger.gate("running") as gate,
    ):
        metadata = tuple(bearer(server).items())

        def ask(*given: Any, **options: Any) -> int:
            with stub_of(server) as stub:
                return sum_in(stub.ModelInfer(request(*given, **options), metadata=metadata, timeout=DEADLINE_S))

        assert ask(5, 1, start=True) == 5
        with stub_of(server) as stub:
            asked = request(1, 2, start=True, gate=gate.path)
            held = stub.ModelInfer.future(asked, metadata=metadata)
            gate.wait()
            for pid in server.front_ends():
                os.kill(pid, signal.SIGKILL)
            assert held.exception(timeout=DEADLINE_S).code() is grpc.StatusCode.UNAVAILABLE
        gate.open()

        def is_answered() -> bool:
            try:
                return ask(1, 3, start=True, end=True) == 1
            except grpc.RpcError:
                return False

        assert settled(is_answered)
        assert ask(6, 1) == 11
        with stub_of(server) as stub, pytest.raises(grpc.RpcError) as refused:
            stub.ModelInfer(request(1, 2, gate=gate.path), metadata=metadata, timeout=DEADLINE_S)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert START in refused.value.details()
        assert "process that ran its last request has ended" in refused.value.details()


def test_lost_sequences_give_way_to_new_ones(ledger: Ledger, tmp_path: Path) -> None:
    """Where there is no other room. Until then a request has the reason of the loss; `sequence_end` frees the place."""
    options = ("--limit", "sequences=3", *RESTARTS, *described(tmp_path))
    with Server(ledger, *options, actor=ACTOR) as server, pool_of(ledger) as pool:
        for number in range(1, 4):
            assert total(post(server, "sums", number, sequence_id=number, sequence_start=True)) == number
        before = pool.devices[0]
        os.kill(before.pid, signal.SIGKILL)
        wait_generation(pool, before.generation + 1)
        lost = post(server, "sums", 1, sequence_id=1, sequence_end=True)
        assert (lost.status, "the state is lost" in lost.json()["error"]) == (400, True)
        for number in range(4, 7):
            assert total(post(server, "sums", number, sequence_id=number, sequence_start=True)) == number
        refused = post(server, "sums", 1, sequence_id=7, sequence_start=True)
        assert (refused.status, "the limit `sequences`" in refused.json()["error"]) == (503, True)

"""Clients of the Open Inference Protocol see no error while workers are killed."""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any, Final

import pytest

from atomr_mp.operator.session import OperatorSession
from atomr_mp.process.files.rundir import SESSION_SOCKET
from tests.serving import Server
from tests.support import ACTORS, Ledger, settled

pytest.importorskip("httptools")

MODELLED: Final = f"{ACTORS}/oip_models.py:Modelled"

KILLS: Final = 5

CLIENTS: Final = 3


def test_an_idempotent_model_answers_through_kills(ledger: Ledger) -> None:
    """Each request once, and right, also over several front ends."""
    options = ("--workers", "2", "--standby", "hot", "--set", "max_restarts=1000", "--set", "max_replays=10")
    with Server(ledger, *options, actor=MODELLED) as server:
        assert settled(lambda: server.ask("GET", "/v2/health/ready").status == 200)
        stop, wrong, counts = threading.Event(), list[Any](), [0] * CLIENTS

        def ask(client: int) -> None:
            while not stop.is_set():
                number = counts[client]
                values = {"a": [number, client], "b": [1, 2]}
                inputs = [{"name": k, "datatype": "INT32", "shape": [2], "data": v} for k, v in values.items()]
                body = json.dumps({"id": f"{client}-{number}", "inputs": inputs}).encode()
                answer = server.ask("POST", "/v2/models/Modelled.add_sub/infer", body)
                told = answer.json()
                good = answer.status == 200 and told["id"] == f"{client}-{number}"
                if not good or told["outputs"][0]["data"] != [number + 1, client + 2]:
                    wrong.append((answer.status, answer.body))
                counts[client] += 1

        def worker() -> tuple[int, bool]:
            with OperatorSession(ledger.run_dir() / SESSION_SOCKET) as session:
                (found,) = session.status().workers
            return found.device.pid, found.standby is not None and found.standby.state == "ready"

        threads = [threading.Thread(target=ask, args=(client,)) for client in range(CLIENTS)]
        for thread in threads:
            thread.start()
        killed = set[int]()
        for _ in range(KILLS):
            assert settled(lambda: worker()[1] and worker()[0] not in killed)
            before, (pid, _) = sum(counts), worker()
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
            assert settled(lambda before=before: sum(counts) > before + 2 * CLIENTS)  # type: ignore[misc]
        stop.set()
        for thread in threads:
            thread.join()
        assert not wrong
        assert len(killed) == KILLS
        (told,) = server.ask("GET", "/v2/models/Modelled.add_sub/stats").json()["model_stats"]
        assert (told["inference_count"], told["inference_stats"]["fail"]["count"]) == (sum(counts), 0)


def test_what_fails_while_the_device_is_down_is_counted(ledger: Ledger) -> None:
    """It has not run, and whoever looks at the model's failures is to see the outage; a wrong request is no failure."""
    with Server(ledger, "--set", "max_restarts=0", actor=MODELLED) as server:
        path, body = "/v2/models/Modelled.add_sub", b'{"inputs": [%s, %s]}'
        one = '{"name": "%s", "datatype": "INT32", "shape": [1], "data": [1]}'
        good = body % tuple((one % name).encode() for name in "ab")
        assert settled(lambda: server.ask("POST", f"{path}/infer", good).status == 200)
        assert server.ask("POST", f"{path}/infer", b'{"inputs": []}').status == 400
        with OperatorSession(ledger.run_dir() / SESSION_SOCKET) as session:
            os.kill(session.status().workers[0].device.pid, signal.SIGKILL)
        assert settled(lambda: server.ask("GET", f"{path}/ready").status == 503)
        statuses = [server.ask("POST", f"{path}/infer", good).status for _ in range(5)]
        assert statuses == [503] * 5
        (told,) = server.ask("GET", f"{path}/stats").json()["model_stats"]
        assert told["inference_stats"]["fail"]["count"] == 5

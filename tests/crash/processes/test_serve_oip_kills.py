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

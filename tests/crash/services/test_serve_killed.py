from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Self

import pytest

import atomr_mp
from tests.contract.serve.test_serve import in_flight
from tests.contract.serve.test_serve_streams import open_stream
from tests.serving import Answer, Server, ask, command_line, read
from tests.support import DEADLINE_S, Ledger, Watched, settled, standby_of, standby_pid, wait_generation

pytest.importorskip("httptools")
pytest.importorskip("uvloop")

HOT = ("--standby", "hot")

LINES = "application/jsonl"


class Load:
    """Clients that call again and again, each on a connection of its own, until they are stopped."""

    def __init__(self, server: Server, method: str, clients: int = 4) -> None:
        self._server = server
        self._method = method
        self._stop = threading.Event()
        self.answers: Counter[int] = Counter()
        """By status; 0 where a connection ended."""
        self.errors: list[bytes] = []
        self._connected: set[int] = set()
        """Clients that have had an answer."""
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        assert settled(lambda: self.answers[200] > 20 and len(self._connected) == len(self._threads))
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)

    def more(self, count: int = 50) -> None:
        """Wait until so many more calls have succeeded."""
        until = self.answers[200] + count
        assert settled(lambda: self.answers[200] >= until), self.answers

    def _run(self, number: int) -> None:
        headers = {"authorization": f"Bearer {self._server.token}", "content-type": "application/json"}
        while not self._stop.is_set():
            with self._server.client() as connection:
                try:
                    while not self._stop.is_set():
                        answer = ask(connection, "POST", f"/call/{self._method}", b"{}", headers)
                        self.answers[answer.status] += 1
                        self._connected.add(number)
                        if answer.status != 200:
                            self.errors.append(answer.body)
                except (OSError, HTTPException):
                    self.answers[0] += 1


@contextmanager
def pool_of(ledger: Ledger) -> Iterator[atomr_mp.Pool]:
    """Join a server's pool."""
    with atomr_mp.connect(run_dir=ledger.run_dir()) as pool:
        pool.wait_ready()
        yield pool


def test_workers_are_killed_under_load_and_no_client_sees_an_error(ledger: Ledger) -> None:
    """A hot standby and an idempotent method make it so; a standby's death is not noticed either."""
    with Server(ledger, *HOT) as server, pool_of(ledger) as pool, Load(server, "Served.where") as load:
        for generation in range(1, 4):
            assert settled(lambda: standby_of(pool).state == "ready")
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            wait_generation(pool, generation + 1)
            load.more()
        assert settled(lambda: standby_of(pool).state == "ready")
        os.kill(standby_pid(pool), signal.SIGKILL)
        load.more()
    assert set(load.answers) == {200}, load.errors[:3]


def test_a_call_that_dies_with_its_worker_is_told_whether_it_may_have_run(ledger: Ledger) -> None:
    """500 for what ran; 503, which proxies send again, for what certainly did not."""
    answers: dict[str, Answer] = {}

    def call(name: str, method: str, arguments: list[str]) -> None:
        answers[name] = server.call(method, arguments)

    with Server(ledger) as server, pool_of(ledger) as pool, ledger.gate("running") as gate:
        ran = threading.Thread(target=call, args=("ran", "Served.wait_at", [gate.path]))
        ran.start()
        gate.wait()
        waited = threading.Thread(target=call, args=("waited", "Served.wait_at", [gate.path]))
        waited.start()
        assert settled(lambda: pool.status().devices[0].queue_depth >= 2)
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        for thread in (ran, waited):
            thread.join(DEADLINE_S)
        assert (answers["ran"].status, answers["ran"].error["code"]) == (500, "worker_lost")
        assert answers["ran"].error["maybe_executed"] is True
        assert "SIGKILL" in answers["ran"].error["facts"]["cause"]
        assert (answers["waited"].status, answers["waited"].error["maybe_executed"]) == (503, False)
        assert int(answers["waited"].headers["retry-after"]) >= 1
        wait_generation(pool, 2)
        assert server.call("Served.length", ["word"]).json() == 4


def test_a_request_that_kills_workers_is_refused_in_the_end(ledger: Ledger) -> None:
    """422, as wrong as wrong arguments."""
    with Server(ledger, *HOT) as server:
        statuses: list[tuple[int, str]] = []

        def refused() -> bool:
            answer = server.call("Served.die")
            statuses.append((answer.status, answer.error["code"]))
            return answer.status == 422

        assert settled(refused)
        assert statuses[-1] == (422, "poison_request")
        assert {each for each in statuses[:-1] if each[0] != 503} == {(500, "worker_lost")}
        assert settled(lambda: server.call("Served.length", ["word"]).status == 200)


def test_a_call_that_hangs_is_told_with_where(ledger: Ledger) -> None:
    """500 and `worker_hung`; the server goes on."""
    with Server(ledger, *HOT) as server:
        answer = server.call("Served.hang")
        assert (answer.status, answer.error["code"]) == (500, "worker_hung")
        assert "stack" not in answer.error["facts"]
        assert settled(lambda: server.call("Served.length", ["word"]).status == 200)


def offered(pid: int | str) -> int:
    """Return what the kernel adds to a process's memory when it chooses what to kill."""
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text(encoding="ascii"))


def test_a_front_end_that_is_killed_costs_its_own_connections_only(ledger: Ledger) -> None:
    """The other one accepts meanwhile, what it has counted stays, and the next is started."""
    with Server(ledger, "--workers", "2") as server:
        with Load(server, "Served.where", 6) as load:
            first = server.front_ends()
            assert len(first) == 2
            assert all(offered(each) > offered("self") for each in first)
            os.kill(first[0], signal.SIGKILL)
            load.more(200)
            assert settled(lambda: len(server.front_ends()) == 2 and first[0] not in server.front_ends())
            load.more(200)
        assert set(load.answers) <= {200, 0}, load.errors[:3]
        assert load.answers[0] <= 6  # none, where the kernel had given all connections to the other one
        assert settled(lambda: in_flight(server) == 0)
        metrics = server.ask("GET", "/metrics").body.decode()
        counted = next(line for line in metrics.splitlines() if 'route="call",status="200"' in line)
        # The killed one may have sent an answer that it had not counted.
        assert load.answers[200] - 1 <= float(counted.rpartition(" ")[2]) <= load.answers[200] + 6
        assert "with status -9" in server.log()


def test_a_supervisor_that_is_killed_is_started_again(ledger: Ledger) -> None:
    """Calls fail typed meanwhile, streams end with an error, and the server is not ready; then all is as before.

    While it is only stopped, calls go on, and nobody who asks for metrics or health waits for it.
    """
    with Server(ledger) as server, ledger.gate("lost") as gate:
        with pool_of(ledger) as pool:
            supervisor = pool.supervisor_pid
        assert server.ask("GET", "/health/ready").status == 200
        assert settled(lambda: is_pool_up(server))
        statuses: set[int] = set()
        os.kill(supervisor, signal.SIGSTOP)
        assert settled(lambda: not is_pool_up(server))  # what it has told lately counts for a moment
        assert server.call("Served.length", ["word"]).status == 200
        assert server.ask("GET", "/health/ready").status == 200
        with open_stream(server, "Served.count", {"upto": 3, "gate": gate.path, "at": 1}, LINES) as stream:
            assert stream.readline() == b'{"part":0}\n'
            gate.wait()
            os.kill(supervisor, signal.SIGKILL)
            error = json.loads(stream.readline())["error"]
            assert (error["code"] in {"pool_lost", "worker_lost"}, error["parts"]) == (True, 1)
            assert stream.readline() == b""
        assert settled(lambda: server.ask("GET", "/health/ready").status == 503)

        def answered() -> bool:
            statuses.add(server.call("Served.length", ["word"]).status)
            return 200 in statuses

        assert settled(answered)
        assert statuses <= {200, 500, 503}
        assert settled(lambda: server.ask("GET", "/health/ready").status == 200)
        assert server.ask("GET", "/health/live").status == 200
        assert settled(lambda: is_pool_up(server))


def test_a_pool_that_is_replaced_is_joined_again(ledger: Ledger) -> None:
    """Without `--actor` the server waits for it, and stops no pool."""
    pool = ledger.start("tests/actors/served.py:Served")
    with Server(ledger, actor=None) as server:
        assert server.call("Served.length", ["word"]).status == 200
        pool.close()
        away = server.call("Served.length", ["word"])
        assert (away.status, away.error["maybe_executed"]) == (503, False)
        with ledger.start("tests/actors/served.py:Served") as second:
            assert settled(lambda: server.call("Served.length", ["word"]).status == 200)
            assert server.stop() == 0
            assert second.call("Served.length", "word").result() == 4


def test_nothing_outlives_a_killed_parent(ledger: Ledger) -> None:
    """Front ends, supervisor and workers end with it."""
    with Server(ledger, "--workers", "2", *HOT) as server:
        assert settled(lambda: len(ledger.processes()) >= 6)  # the standby comes after the server is ready
        started = ledger.processes()
        with Watched(started) as watched:
            server.process.kill()
            assert not watched.left(DEADLINE_S)
    for name in ("session.sock", "lock"):
        (ledger.run_dir() / name).unlink(missing_ok=True)  # of a killed supervisor; the next start removes them
    for path in ledger.run_dir().iterdir():
        if path.is_socket():
            path.unlink()


def test_at_sigterm_what_runs_is_answered_and_new_clients_are_told(ledger: Ledger) -> None:
    """For `--drain-delay` the server is not ready and accepts; then the call gets its answer; the pool goes last."""
    with Server(ledger, "--drain-delay", "5.0") as server, ledger.gate("drain") as gate:
        with server.client() as running:
            headers = {"authorization": f"Bearer {server.token}", "content-type": "application/json"}
            running.request("POST", "/call/Served.wait_at", json.dumps([gate.path]).encode(), headers)
            gate.wait()
            server.process.send_signal(signal.SIGTERM)
            assert settled(lambda: server.ask("GET", "/health/ready").status == 503)
            assert server.call("Served.length", ["word"]).status == 200
            assert settled(lambda: refuses(server))
            gate.open()
            assert read(running.getresponse()).status == 200
        assert server.process.wait(DEADLINE_S) == 0


def test_a_second_signal_ends_it_at_once(ledger: Ledger) -> None:
    """Whatever still runs; the pool is stopped all the same."""
    with Server(ledger) as server, ledger.gate("stuck") as gate:
        call = threading.Thread(target=cut_off, args=(server, gate.path))
        call.start()
        gate.wait()
        front_ends = server.front_ends()
        server.process.send_signal(signal.SIGTERM)
        assert settled(lambda: refuses(server))
        assert all(map(command_line, front_ends))
        with Watched(front_ends) as watched:
            server.process.send_signal(signal.SIGINT)
            assert not watched.left(DEADLINE_S)
        gate.open()
        call.join(DEADLINE_S)
        assert server.process.wait(DEADLINE_S) == 0


def test_clients_that_vanish_by_the_hundred_leave_nothing(ledger: Ledger) -> None:
    """Their calls are dropped, those of the others are answered, and the process has as many descriptors as before."""
    with Server(ledger) as server, ledger.gate("crowd") as gate:
        (front_end,) = server.front_ends()
        with Load(server, "Served.where", 2) as load:
            before = descriptors(front_end)
            body = json.dumps([gate.path]).encode()
            head = f"POST /call/Served.wait_at HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {server.token}\r\n"
            whole = f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
            crowd = [server.connect() for _ in range(200)]
            for each in crowd:
                each.sendall(whole)
            gate.wait()  # the first runs, the others wait behind it
            assert settled(lambda: descriptors(front_end) >= before + 200)
            for each in crowd:
                each.close()
            assert settled(lambda: descriptors(front_end) <= before)
            load.more()
        assert set(load.answers) == {200}, load.errors[:3]
        assert settled(lambda: waiting(ledger) <= 1)
        gate.open()
        assert settled(lambda: waiting(ledger) == 0)


def waiting(ledger: Ledger) -> int:
    """Return how many requests the worker holds."""
    with pool_of(ledger) as pool:
        return pool.status().devices[0].queue_depth


def refuses(server: Server) -> bool:
    """Whether the port is closed."""
    try:
        server.connect().close()
    except OSError:
        return True
    return False


def cut_off(server: Server, gate: str) -> None:
    """Call and get no answer: the server ends before it."""
    with pytest.raises((OSError, HTTPException)):
        server.call("Served.wait_at", [gate])


def descriptors(pid: int) -> int:
    """Return how many descriptors a process has."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def is_pool_up(server: Server) -> bool:
    """Return whether the metrics have the pool's."""
    metrics = server.ask("GET", "/metrics").body.decode()
    is_up = "atomr_mp_http_pool_up 1.0" in metrics
    assert is_up == ("atomr_mp_sessions " in metrics)
    return is_up

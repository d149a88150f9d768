"""Metrics as Prometheus would read them, and the process that serves them, which may fail without harm."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.startup.planning import make_plan
from atomr_mp.supervision.settings import PoolSettings
from tests import remote as served
from tests.support import ACTORS, BACKEND, DEADLINE_S, Ledger, free_port, settled, wait_generation

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families  # after the look whether it is there

BATCHED = f"{ACTORS}/batched.py:Batched"
BUCKET = "atomr_mp_batch_items_bucket"

Samples = dict[tuple[str, ...], float]


def get(address: str | tuple[str, int]) -> str:
    """Return the body that is served at an address."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(DEADLINE_S)
        connection.connect(address)
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        answer = b""
        while part := connection.recv(65536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0], head
    return body.decode()


def scrape(address: str | tuple[str, int]) -> Samples:
    """Return the samples by name and the values of their labels; each metric is declared once."""
    found: Samples = {}
    names = []
    for family in text_string_to_metric_families(get(address)):
        names.append(family.name)
        for sample in family.samples:
            found[sample.name, *sample.labels.values()] = sample.value  # labels come in alphabetical order
    assert len(names) == len(set(names))
    return found


def exporters(ledger: Ledger) -> list[int]:
    """Return the pids of the processes that serve metrics."""
    return [pid for pid in ledger.processes() if b"atomr_mp.helpers.metrics_server" in command_line(pid)]


def command_line(pid: int) -> bytes:
    """Return a process's command line, none if it has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def pool(ledger: Ledger) -> Any:
    """A pool that serves metrics in its run directory."""
    with ledger.start(gpus=2, metrics="unix:metrics.sock") as started:
        yield started


def address(pool: atomr_mp.Pool) -> str:
    """Return where it does."""
    return str(pool.run_dir / "metrics.sock")


def test_requests_are_counted_by_outcome_and_latency(pool: atomr_mp.Pool, ledger: Ledger) -> None:
    """Over the lives of several workers; the figures that died with one are lost."""
    for n in range(20):
        pool.call("Probe.note", f"{n}", device=0).result()
    with pytest.raises(errors.ActorFailed):
        pool.call("Probe.fail", "exception", device=0).result()
    with ledger.gate("gate") as gate:
        held = pool.call("Probe.hold", gate.path, device=0)
        gate.wait()
        running = scrape(address(pool))
        assert running["atomr_mp_running", "0"] == 1
        assert running["atomr_mp_queue_depth", "0"] == 1
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        with pytest.raises(errors.WorkerLost):
            held.result()
    wait_generation(pool, 2)
    pool.restart(0)
    wait_generation(pool, 3)
    found = scrape(address(pool))
    outcomes = {key[2]: value for key, value in found.items() if key[:2] == ("atomr_mp_requests_total", "0")}
    assert outcomes == {"answered": 20, "failed": 1, "cancelled": 0, "expired": 0, "rejected": 0, "lost": 1}
    assert found["atomr_mp_request_seconds_count", "0"] == found["atomr_mp_request_seconds_bucket", "0", "+Inf"] == 21
    assert 0 < found["atomr_mp_request_seconds_sum", "0"] < DEADLINE_S
    assert found["atomr_mp_worker_ends_total", "sigkill", "0"] == 1
    assert found["atomr_mp_worker_ends_total", "restart", "0"] == 1
    assert (found["atomr_mp_restarts_total", "0"], found["atomr_mp_restarts_total", "1"]) == (1, 0)
    assert (found["atomr_mp_generation", "0"], found["atomr_mp_generation", "1"]) == (3, 1)
    assert found["atomr_mp_device_state", "1", "ready"] == 1
    assert found["atomr_mp_device_circuit", "closed", "1"] == 1
    assert found["atomr_mp_device_circuit", "open", "1"] == 0
    assert found["atomr_mp_worker_memory_bytes", "1"] > 2**20
    assert found["atomr_mp_sessions",] == 1


def test_every_metric_is_described(pool: atomr_mp.Pool) -> None:
    """In the page about watching; and the page names no other, but those of GPUs where there are none."""
    page = (Path(__file__).parents[3] / "docs" / "watching.md").read_text(encoding="utf-8")
    described = set(re.findall(r"`(atomr_mp_\w+)`", page))
    # A counter's family is told without the end that its samples have.
    served = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in text_string_to_metric_families(get(address(pool)))
    }
    assert served == {name for name in described if BACKEND == "cuda" or not name.startswith("atomr_mp_gpu_")}


def test_remote_clients_are_counted(ledger: Ledger) -> None:
    """Their sessions, what is under way, and the relay's ends."""
    found = served.serve(ledger, metrics="unix:metrics.sock")
    with found.pool as pool, found.connect() as far, ledger.gate("held") as gate:
        held = far.call("Probe.hold", gate.path)
        with pytest.raises(TimeoutError):  # so that it is sent
            held.result(timeout_s=0.01)
        gate.wait()
        where = address(pool)
        assert settled(lambda: scrape(where)["atomr_mp_remote_sessions", "up"] == 1, DEADLINE_S)
        samples = scrape(where)
        assert samples["atomr_mp_remote_sessions", "cut"] == 0
        assert ("atomr_mp_remote_kept_bytes",) in samples
        assert (samples["atomr_mp_relay_listening",], samples["atomr_mp_relay_restarts_total",]) == (1, 0)
        os.kill(found.pid, signal.SIGKILL)
        assert settled(lambda: scrape(where)["atomr_mp_relay_restarts_total",] == 1, DEADLINE_S)
        gate.open()
        assert isinstance(held.exception(DEADLINE_S), errors.ConnectionLost)


def test_batches_are_counted_by_their_size(ledger: Ledger) -> None:
    """By method; and `status` tells the same in words."""
    with ledger.start(BATCHED, metrics="unix:metrics.sock", run_dir="batched") as pool:
        assert [reply.result() for reply in [pool.call("Batched.sizes", 1) for _ in range(4)]] == [[4, 1]] * 4
        assert settled(lambda: scrape(address(pool))["atomr_mp_batch_items_count", "0", "1", "Batched.sizes"] == 1)
        found = scrape(address(pool))
        sizes = {key[3]: value for key, value in found.items() if key[0] == BUCKET and key[4] == "Batched.sizes"}
        assert (sizes["2.0"], sizes["4.0"], sizes["+Inf"]) == (0, 1, 1)
        assert found["atomr_mp_batch_items_sum", "0", "1", "Batched.sizes"] == 4
        longest = found["atomr_mp_batch_longest_wait_seconds", "0", "1", "Batched.sizes"]
        assert 0 < longest <= found["atomr_mp_batch_wait_seconds_sum", "0", "1", "Batched.sizes"] <= 4 * longest
        assert found["atomr_mp_batch_wait_seconds_count", "0", "1", "Batched.sizes"] == 4
        assert found["atomr_mp_batch_items_count", "0", "1", "Batched.hold"] == 0
        command = [sys.executable, "-m", "atomr_mp.cli", "status", "--run-dir", str(pool.run_dir)]
        told = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True).stdout
        assert re.search(r"device 0, Batched\.sizes: in batches of 4\.0, after .* ms \(means of 4 requests\)", told)


def test_memory_is_shown(pool: atomr_mp.Pool) -> None:
    """Slabs and leases, as they come and go."""
    device = pool.device(1)
    assert scrape(address(pool))["atomr_mp_leases", "1"] == 0
    array = device.empty((1000,), "float32")
    assert settled(lambda: scrape(address(pool))["atomr_mp_leases", "1"] == 1)
    assert scrape(address(pool))["atomr_mp_slab_bytes", "1"] >= 4000
    array.free()
    pool.call("Probe.echo", 1, device=1).result()  # carries what was given back
    assert settled(lambda: scrape(address(pool))["atomr_mp_leases", "1"] == 0)


def test_the_process_that_serves_comes_back_and_harms_nobody(pool: atomr_mp.Pool, ledger: Ledger) -> None:
    """It is started again after a kill; workers and clients do not notice."""
    (pid,) = exporters(ledger)
    os.kill(pid, signal.SIGKILL)
    assert pool.call("Probe.note", "on").result() == "on"
    assert settled(lambda: bool(set(exporters(ledger)) - {pid}))
    assert scrape(address(pool))["atomr_mp_generation", "0"] == 1


def test_the_process_that_serves_dies_with_its_supervisor(pool: atomr_mp.Pool, ledger: Ledger) -> None:
    """However that ends: the ledger counts."""
    assert scrape(address(pool))
    os.kill(pool.supervisor_pid, signal.SIGKILL)
    assert settled(lambda: not exporters(ledger))
    (pool.run_dir / "metrics.sock").unlink()
    for path in [*pool.run_dir.glob("*.sock"), pool.run_dir / "lock", *pool.run_dir.glob("workers/*")]:
        path.unlink()


def test_an_address_in_use_is_an_error_of_the_start(ledger: Ledger) -> None:
    """Typed, and nothing is left."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(errors.ConfigurationError, match=f"metrics = '{where}'.*in use"):
            ledger.start(metrics=where)


def test_a_port_is_served(ledger: Ledger) -> None:
    """On the loopback address."""
    port = free_port()
    with ledger.start(metrics=f"127.0.0.1:{port}"):
        assert scrape(("127.0.0.1", port))["atomr_mp_generation", "0"] == 1


@pytest.mark.parametrize("where", ["on", "9464", "0.0.0.0:9464", "10.0.0.1:80", "127.0.0.1:0", "127.0.0.1:x"])
def test_only_this_machine_is_served(where: str) -> None:
    """Metrics are for this machine; others go through a proxy."""
    with pytest.raises(errors.ConfigurationError, match="use off, a loopback address"):
        make_plan(PoolSettings(backend="host", metrics=where))


def test_a_supervisor_that_stands_still_is_told_and_what_runs_stays_named(pool: atomr_mp.Pool) -> None:
    """Calls go on, so `atomr_mp_info` stays; and once the supervisor answers, the same process tells the rest."""
    before = scrape(address(pool))
    info = next(name for name in before if name[0] == "atomr_mp_info")
    assert before["atomr_mp_supervisor_up",] == 1
    os.kill(pool.supervisor_pid, signal.SIGSTOP)
    try:
        assert scrape(address(pool)) == {("atomr_mp_supervisor_up",): 0, info: 1}
        assert pool.call("Probe.note", "1").result() == "1"
    finally:
        os.kill(pool.supervisor_pid, signal.SIGCONT)
    assert settled(lambda: scrape(address(pool))["atomr_mp_supervisor_up",] == 1)
    assert scrape(address(pool)).keys() >= before.keys()

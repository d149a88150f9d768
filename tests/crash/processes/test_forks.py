"""Processes that fork: applications that hold a pool, and actors."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import atomr_mp
from atomr_mp.process.cgroup import CgroupParent
from tests.contract.command.test_cli import read_until
from tests.support import BACKEND, DEADLINE_S, PROBE, Ledger, Watched, open_descriptors, settled, wait_generation


def test_an_application_may_fork(ledger: Ledger) -> None:
    """The child gets `PoolLost` for all it tries and harms nothing; the pool ends with the parent, not the child."""
    with (
        ledger.gate("gate") as gate,
        ledger.gate("end") as end,
        ledger.program("forking", ledger.run_dir(), PROBE, gate.path, end.path) as program,
    ):
        *pids, child = (int(pid) for pid in program.hear())
        gate.wait()
        with Watched(pids) as pool, Watched([child]) as children:
            assert " ".join(program.hear()) == "PoolLost, unsent; PoolLost; nothing; nothing"
            program.tell()
            assert program.hear() == ["1", "well"]
            assert pool.left(0) == pids
            program.kill()
            assert pool.left() == []
            assert children.left(0) == [child]
            end.open()
            assert children.left() == []


def test_what_an_actor_has_started_ends_with_its_worker(ledger: Ledger) -> None:
    """Forked, forked by a fork, started, in sessions of their own, abandoned by their parent: none is left."""
    with ledger.start(max_restarts=1000) as pool:
        pids = pool.call("Probe.fork_and_start").result()
        with Watched(pids) as watched:
            assert watched.left(0.2) == pids
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            assert watched.left() == []
        wait_generation(pool, 2)
        assert pool.call("Probe.where").result()[1:] == [0, 2]
        again = pool.call("Probe.fork_and_start").result()
        with Watched(again) as watched:
            pool.restart(0)
            wait_generation(pool, 3)
            assert watched.left() == []


def test_a_forked_child_of_an_actor_does_not_hold_the_control_channel(ledger: Ledger) -> None:
    """Otherwise its worker's end would be seen only at the child's end."""
    with ledger.start() as pool:
        worker = pool.devices[0].pid
        forked, grandchild, *_ = pool.call("Probe.fork_and_start").result()
        sockets = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
        packets = {f"socket:[{fields[6]}]" for fields in sockets if int(fields[4], 16) == socket.SOCK_SEQPACKET}
        (control,) = packets & set(open_descriptors(worker).values())
        for pid in (forked, grandchild):
            assert control not in open_descriptors(pid).values()


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_stray_signal_to_a_worker_is_a_death_like_others_or_nothing(ledger: Ledger, signal_number: int) -> None:
    """A worker ignores Ctrl-C of a terminal; other signals end it, and it is replaced."""
    with ledger.start() as pool:
        os.kill(pool.devices[0].pid, signal_number)
        generation = 1 if signal_number == signal.SIGINT else 2
        if generation == 2:
            wait_generation(pool, 2)
        assert pool.call("Probe.where").result()[1:] == [0, generation]


@pytest.mark.parametrize("standby", ["none", "warm"])
def test_what_an_actor_starts_inherits_no_descriptors(ledger: Ledger, standby: str) -> None:
    """For started and forked workers: `os.system` and C code close no descriptors themselves."""
    with ledger.start(standby=standby) as pool:
        assert pool.call("Probe.inheritable").result() == []


def test_what_an_application_keeps_from_itself_reaches_its_pool(ledger: Ledger) -> None:
    """An application that uses sigwait blocks signals, and its children inherit that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
    try:
        pool = ledger.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with pool, Watched([pool.supervisor_pid, pool.devices[0].pid]) as watched:
        os.kill(pool.supervisor_pid, signal.SIGTERM)
        assert watched.left(DEADLINE_S) == []


def test_what_the_supervisor_s_process_had_started_before_is_not_touched(ledger: Ledger) -> None:
    """A script starts something beside the pool and becomes it, as the first process of a container may."""
    start = [sys.executable, "-m", "atomr_mp.cli", "start", "--backend", BACKEND, "--gpus", "1", "--actor", PROBE]
    script = 'sleep 1000 & echo $!; exec "$@" 2>&1'
    command = ["sh", "-c", script, "sh", *start, "--run-dir", str(ledger.run_dir())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            assert process.stdout is not None
            beside = int(process.stdout.readline())
            with Watched([beside]) as watched:
                read_until(process.stdout, "device 0 generation 1: ready")
                with atomr_mp.connect(run_dir=ledger.run_dir()) as pool:
                    assert pool.supervisor_pid == process.pid
                    os.kill(pool.devices[0].pid, signal.SIGKILL)
                    wait_generation(pool, 2)
                assert watched.left(0) == [beside]
                os.kill(beside, signal.SIGKILL)
                assert watched.left() == []
            assert settled(lambda: not Path(f"/proc/{beside}").exists())
        finally:
            process.send_signal(signal.SIGTERM)


def test_the_cgroup_of_a_worker_goes_with_the_last_process_in_it(ledger: Ledger) -> None:
    """Its processes end a little later; a cgroup that a killed supervisor left is in no one's way."""
    parent = CgroupParent.find()
    if parent is None:
        pytest.skip("no writable version 2 cgroup here")
    paths = [parent.path / f"device-0-{generation}" for generation in (1, 2, 3)]
    if any(path.exists() for path in paths):
        pytest.skip("another pool's are there")
    paths[0].mkdir()
    with ledger.start(cgroups=True) as pool:
        for path, generation in zip(paths, (2, 3), strict=False):
            pool.call("Probe.fork_and_start").result()
            if str(pool.devices[0].pid) not in (path / "cgroup.procs").read_text().split():
                pytest.skip("no cgroup can be made here")
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            wait_generation(pool, generation)
            assert settled(lambda path=path: not path.exists())  # type: ignore[misc]
        pool.call("Probe.fork_and_start").result()
    assert not any(path.exists() for path in paths)

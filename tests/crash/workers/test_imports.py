"""What requests have imported is imported in the device's next processes before anybody calls them."""

from __future__ import annotations

import os
import signal
from typing import Any, Final

import pytest

from atomr_mp.process.files.events import read_events
from atomr_mp.protocol import process_tags
from atomr_mp.protocol.messages.devices import DeviceState
from tests.support import Ledger, settled, standby_of, standby_pid, wait_generation, wait_state

ACTOR: Final = """
import decimal, importlib, os
from atomr_mp_workers import Actor, method

class Late(Actor):
    @method
    def load(self, names: str) -> int:
        for name in names.split():
            importlib.import_module(name)
        return os.getpid()

    @method
    def where(self) -> int:
        return os.getpid()

    @method
    def digits(self, names: str) -> int:
        self.load(names)
        return decimal.getcontext().prec

    @method(thread=True)
    def digits_on_thread(self, names: str) -> int:
        return self.digits(names)
"""

NOTING: Final = """
import os, threading
here = os.environ["{tag}"]
with open({path!r}, "a") as noted:
    print(here, threading.current_thread() is threading.main_thread(), file=noted)
"""
"""Notes each import: the device and generation, and whether that was on the loop's thread."""


WAITING: Final = """
if here != "0-1":
    with open("{gate}.here", "a") as arrived:
        print(os.getpid(), file=arrived)
    open("{gate}.go", "rb", buffering=0).read(1)
"""
"""Waits at a gate in all workers but the first."""


class Modules:
    """An actor that imports modules by their names, beside modules that note their imports."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        (ledger.path / "late_actor.py").write_text(ACTOR)
        self.actor: Final = f"{ledger.path}/late_actor.py:Late"

    def write(self, name: str, code: str = "") -> None:
        """Write a module that notes its import, then runs code."""
        (self._ledger.path / f"{name}.py").write_text(
            NOTING.format(tag=process_tags.WORKER, path=str(self._ledger.path / name)) + code
        )

    def imported(self, name: str) -> list[str]:
        """Return the workers that have imported a module; those on their loop with a star."""
        found = self._ledger.runs(name)
        return [where + "*" * (loop == "True") for where, loop in zip(found[::2], found[1::2], strict=True)]


@pytest.fixture
def modules(ledger: Ledger) -> Modules:
    """The actor, and where modules are."""
    return Modules(ledger)


def stands(pool: Any, generation: int) -> bool:
    """Return whether a standby of this generation is ready."""
    found = standby_of(pool)
    return found.generation == generation and found.state == "ready"


def events(ledger: Ledger, kind: str) -> list[str]:
    """Return what was logged of a kind."""
    return [str(event["text"]) for event in read_events(ledger.run_dir() / "events.jsonl") if event["event"] == kind]


def test_a_standby_imports_what_requests_have_imported(ledger: Ledger, modules: Modules) -> None:
    """A present standby at once, a later one before it is ready, on the loop as the requests; no call does it again."""
    modules.write("late_one")
    modules.write("late_two")
    with ledger.start(modules.actor, standby="hot", max_restarts=100) as pool:
        assert settled(lambda: stands(pool, 2))
        pool.call("Late.load", "late_one").result()
        assert settled(lambda: modules.imported("late_one") == ["0-1*", "0-2*"])
        pool.call("Late.load", "late_two").result()
        assert settled(lambda: modules.imported("late_two") == ["0-1*", "0-2*"])
        for generation in (2, 3):
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            wait_generation(pool, generation)
            for name in ("late_one", "late_two"):
                pool.call("Late.load", name).result()
            assert settled(lambda generation=generation: stands(pool, generation + 1))  # type: ignore[misc]
            for name in ("late_one", "late_two"):
                assert modules.imported(name) == [f"0-{number}*" for number in range(1, generation + 2)]


@pytest.mark.parametrize("standby", ["none", "warm", "hot"])
def test_what_an_import_sets_holds_in_later_processes_too(ledger: Ledger, modules: Modules, standby: str) -> None:
    """For the thread of the requests: on the loop by an import ahead, on an actor's thread by the request's own."""
    modules.write("late_set", "import decimal, signal; decimal.getcontext().prec = 50\n")
    modules.write("late_signal", "import signal; signal.signal(signal.SIGUSR2, signal.SIG_IGN)")
    modules.write("late_thread", "import decimal; decimal.getcontext().prec = 40")
    with ledger.start(modules.actor, standby=standby, max_restarts=100) as pool:
        for generation in (1, 2, 3):
            wait_generation(pool, generation)
            assert pool.call("Late.digits", "late_set late_signal").result() == 50
            assert pool.call("Late.digits_on_thread", "late_thread").result() == 40
            if standby == "hot":
                assert settled(lambda generation=generation: stands(pool, generation + 1))  # type: ignore[misc]
                where = f"0-{generation + 1}*"
                assert settled(lambda where=where: where in modules.imported("late_set"))  # type: ignore[misc]
            os.kill(pool.devices[0].pid, signal.SIGKILL)
        wait_generation(pool, 4)
        assert pool.call("Late.digits", "late_set").result() == 50
        assert modules.imported("late_thread") == ["0-1", "0-2", "0-3"]


def test_a_promotion_waits_for_no_import_but_the_one_under_way(ledger: Ledger, modules: Modules) -> None:
    """A process that takes calls begins no further import by itself."""
    with ledger.gate("slow") as gate:
        modules.write("late_slow", WAITING.format(gate=gate.path))
        modules.write("late_two")
        with ledger.start(modules.actor, standby="hot") as pool:
            assert settled(lambda: stands(pool, 2))
            pool.call("Late.load", "late_two late_slow").result()  # the last is imported ahead first
            (pid,) = gate.wait()
            assert standby_pid(pool) == pid
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            wait_generation(pool, 2)
            waiting = pool.call("Late.where")
            assert not waiting.done
            gate.open(100)
            assert waiting.result() == pid
            assert settled(lambda: stands(pool, 3))
            assert "0-2*" not in modules.imported("late_two")
            assert modules.imported("late_two")[:1] == ["0-1*"]


def test_a_standby_that_still_imports_is_waited_for(ledger: Ledger, modules: Modules) -> None:
    """It is not ready before; the calls wait, and no third process is started."""
    with ledger.gate("slow") as gate:
        modules.write("late_slow", WAITING.format(gate=gate.path))
        with ledger.start(modules.actor, standby="hot", max_restarts=100) as pool:
            assert settled(lambda: stands(pool, 2))
            pool.call("Late.load", "late_slow").result()
            gate.wait()
            gate.open()
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            wait_generation(pool, 2)
            (pid,) = gate.wait()
            assert (standby_of(pool).state, standby_of(pool).pid) == ("starting", pid)
            os.kill(pool.devices[0].pid, signal.SIGKILL)
            wait_state(pool, DeviceState.STARTING)
            waiting = pool.call("Late.where")
            assert not waiting.done
            gate.open(100)
            assert waiting.result() == pid
            assert pool.devices[0].generation == 3


def test_any_other_restart_does_so_too_but_a_reload_begins_anew(ledger: Ledger, modules: Modules) -> None:
    """The process without a standby before it has imported what is needed when it is ready."""
    modules.write("late_one")
    with ledger.start(modules.actor, standby="none") as pool:
        pool.call("Late.load", "late_one").result()
        assert pool.call("Late.where").result()  # so that the loop has had another turn
        pool.restart(0)
        wait_generation(pool, 2)
        assert modules.imported("late_one") == ["0-1*", "0-2*"]
        pool.reload()
        pool.call("Late.where").result()
        assert modules.imported("late_one") == ["0-1*", "0-2*"]
        pool.call("Late.load", "late_one").result()
        assert modules.imported("late_one") == ["0-1*", "0-2*", "0-3*"]


def test_what_a_reload_sets_up_beside_a_worker_begins_anew(ledger: Ledger, modules: Modules) -> None:
    """So do the standbys after it, until its own requests import."""
    modules.write("late_one")
    with ledger.start(modules.actor, standby="hot") as pool:
        pool.call("Late.load", "late_one").result()
        assert settled(lambda: stands(pool, 2))
        assert settled(lambda: modules.imported("late_one") == ["0-1*", "0-2*"])
        pool.reload()
        wait_generation(pool, 3)
        assert settled(lambda: stands(pool, 4))
        assert modules.imported("late_one") == ["0-1*", "0-2*"]
        pool.call("Late.load", "late_one").result()
        assert settled(lambda: modules.imported("late_one") == ["0-1*", "0-2*", "0-3*", "0-4*"])


def test_an_import_that_ends_standbys_is_barred(ledger: Ledger, modules: Modules) -> None:
    """However many there are; the device has a standby in the end, and its worker has noticed nothing."""
    count = 4  # more than the standbys that may fail in a row
    for number in range(count):
        modules.write(f"late_{number}", "if here != '0-1': os._exit(9)")
    modules.write("late_good")
    with ledger.start(modules.actor, standby="hot", backoff_initial_s=0.01) as pool:
        pid = pool.call("Late.where").result()
        for number in range(count):
            pool.call("Late.load", f"late_{number}").result()
        pool.call("Late.load", "late_good").result()
        assert settled(lambda: len(events(ledger, "import_barred")) == count)
        assert settled(lambda: standby_of(pool).state == "ready")
        assert settled(lambda: f"0-{standby_of(pool).generation}*" in modules.imported("late_good"))
        assert pool.call("Late.where").result() == pid
        assert standby_pid(pool) != pid
        assert all("has ended a process" in text for text in events(ledger, "import_barred"))
        for number in range(count):
            assert len(modules.imported(f"late_{number}")) == 2

"""Each new process calls methods with their examples before it is ready: of every kind, and whatever comes of it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final

import pytest

from atomr_mp import errors
from atomr_mp.process.files.events import read_events
from atomr_mp.protocol.messages.devices import DeviceState
from atomr_mp.protocol.process_tags import SLAB
from tests.actors.alike import BY_REF, GIVEN
from tests.support import ACTORS, BACKEND, Ledger, settled, standby_of, wait_generation

TARGET: Final = f"{ACTORS}/warmed.py"
PARTS: Final = 5000

WARMED: Final = {
    "plain": [100_000, False],
    "threaded": [2, [1], "default"],
    "batched": ["text"],
    "streamed": PARTS,
    "stepped": 3,
    "written": [1000],
}
ON_THREAD: Final = {"threaded", "streamed", "stepped"}


def events(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    """Return the events of a kind."""
    return [dict(event) for event in read_events(run_dir / "events.jsonl") if event["event"] == kind]


def test_a_process_calls_each_method_once_where_its_calls_run(ledger: Ledger) -> None:
    """With the arguments as a caller's would arrive, standbys too; nothing is left of it but what it has warmed."""
    with ledger.start(f"{TARGET}:Warmed", f"{TARGET}:WarmedAsync", standby="hot") as pool:
        for generation in (1, 2):
            wait_generation(pool, generation)
            setup, *runs = pool.call("Warmed.runs").result()
            assert setup[:3] == ["setup", None, False]
            assert {name: given for name, given, _, _ in runs} == WARMED
            assert len(runs) == len(WARMED)
            assert all(warming for _, _, warming, _ in runs)
            assert {name for name, _, _, thread in runs if thread == "Warmed"} == ON_THREAD
            told = pool.call("WarmedAsync.runs").result()
            assert [run[:3] for run in told] == [["coroutine", 1, True], ["generator", PARTS, True]]
            found = pool.device(0).statistics()
            assert (found["used_bytes"], found["leases"], found["views"]) == (0, 0, 0)
            pool.call("Warmed.unwarmed").result()
            assert pool.call("Warmed.runs").result()[-1][:3] == ["unwarmed", None, False]
            assert settled(lambda: standby_of(pool).state == "ready")
            pool.restart(0)
        wait_generation(pool, 3)
    told = [event["text"] for event in events(ledger.run_dir(), "warm_up") if event["generation"] == 2]
    names = [*(f"Warmed.{name}" for name in sorted(WARMED)), "WarmedAsync.coroutine", "WarmedAsync.generator"]
    assert told == [f"warming up {name}" for name in names]


def memfds(pid: int) -> list[str]:
    """Return the descriptors and mappings that a process has of slabs."""
    opened = [str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()]
    return [each for each in [*opened, *Path(f"/proc/{pid}/maps").read_text().splitlines()] if f"memfd:{SLAB}" in each]


def test_an_example_takes_and_returns_what_a_call_may(ledger: Ledger) -> None:
    """Arrays of any size, refs where there have to be some, all of it as from a caller; and no memory of it stays."""
    with ledger.start(f"{ACTORS}/alike.py:Alike") as pool:
        if BACKEND == "host":  # on a GPU, the slab of the process's own memory may stay
            assert memfds(pool.devices[0].pid) == []
        found = pool.device(0).statistics()
        names = "slab_bytes", "used_bytes", "leases", "client_slabs", "cached_bytes"
        assert {name: found[name] for name in names} == dict.fromkeys(names, 0)
        for name, example in GIVEN.items():
            given, by_ref = example(), BY_REF.get(name, [])
            if isinstance(given, dict):
                put = {key: pool.device(0).put(each) if key in by_ref else each for key, each in given.items()}
                pool.call(f"Alike.{name}", kwargs=put).result()
            else:
                items = [pool.device(0).put(each) if at in by_ref else each for at, each in enumerate(given)]
                if name == "streamed":
                    assert len(list(pool.stream(f"Alike.{name}", *items))) == items[1]
                else:
                    pool.call(f"Alike.{name}", *items).result()
        by_example, by_caller = pool.call("Alike.notes").result()
        assert by_example.keys() == GIVEN.keys()
        assert by_example == by_caller


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ("example", errors.SetupFailed, "the example of Failing.fail raised OnPurposeError: on purpose"),
        ("no-tuple", errors.ActorLoadFailed, "the example of Failing.fail returned a value of type int; it returns a"),
        ("unsendable", errors.ActorLoadFailed, "warming up Failing.fail with its example failed: "),
        (
            "huge",
            errors.ActorLoadFailed,
            "warming up Failing.fail with its example failed: an array of 1073741825 bytes",
        ),
        ("unfit", errors.ActorLoadFailed, "warming up Failing.fail with its example failed: .*Expected `int`"),
        ("exception", errors.SetupFailed, "warming up Failing.fail .*raised OnPurposeError: on purpose"),
        ("missing", errors.ActorLoadFailed, "warming up Failing.fail .*No module named 'no_such_module'"),
        ("segv", errors.SetupFailed, "SIGSEGV"),
        ("poison", errors.SetupFailed, "on purpose; noticed in Failing.fail"),
        ("hang", errors.SetupFailed, "warming up Failing.fail with its example took longer than 0.2 s"),
    ],
)
def test_what_fails_there_has_failed_as_setup(ledger: Ledger, how: str, error: type[Exception], text: str) -> None:
    """The start tells why, and a hang limit holds."""
    if BACKEND == "cuda" and how == "poison":
        pytest.skip("the context is not lost")
    (ledger.path / how).touch()
    with pytest.raises(error, match=text):
        ledger.start(f"{TARGET}:Failing", max_restarts=0, give_up=True)
    if how == "hang":
        log = (ledger.run_dir() / "device-0.log").read_text()
        assert "Timeout (0:00:00.200000)!" in log
        assert "in die" in log


def test_what_is_warmed_up_is_shown_and_calls_wait(ledger: Ledger) -> None:
    """`status` says it of the device, and the event log, which `serve` tells in its own log, of any process."""
    with ledger.start(f"{TARGET}:Slow") as pool, ledger.gate("warming") as gate:
        restart = threading.Thread(target=pool.restart, args=(0,))
        restart.start()
        try:
            (pid,) = gate.wait()
            assert settled(lambda: pool.devices[0].reason == "warming up Slow.answer")
            assert (pool.devices[0].pid, pool.devices[0].state) == (pid, DeviceState.STARTING)
            waiting = pool.call("Slow.answer")
            assert not waiting.done
            gate.open(2)
            assert waiting.result() == pid
        finally:
            gate.open(100)
            restart.join()
        assert pool.devices[0].reason == ""
        shown = [(event["generation"], event["text"]) for event in events(ledger.run_dir(), "warm_up")]
        assert shown == [(number, "warming up Slow.answer") for number in (1, 2)]

"""Each public way to call, on a pool whose devices still load: what is not known yet is waited for, never guessed."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.client.actor_ref import ActorRef
from atomr_mp.device import Device
from atomr_mp.made_world import MadeWorld
from atomr_mp.protocol.messages.devices import Resumes
from atomr_mp.world import World, WorldActor
from tests.remote import LISTEN
from tests.support import ACTORS, DEADLINE_S, Ledger, in_loop, running, settled
from tests.worlds import on_host

pytestmark = on_host

LOADING: Final = f"{ACTORS}/loading.py:Loading"

OWN_DEADLINE_S: Final = 47.0
"""The deadline that its methods have."""

WAITS: Final = "asked below: it waits in a thread and in an event loop"
TOLD: Final = "what the supervisor has reported so far, and is documented as that"
NO_FACT: Final = "needs no fact that comes from a device"
NEEDS_REFS: Final = "takes refs, which devices make: nobody has one while they load"
OPERATOR: Final = "a question or an order to the supervisor, which knows what loads"

VERDICTS: Final[dict[type, dict[str, str]]] = {
    atomr_mp.Pool: {
        **dict.fromkeys(["call", "stream", "map", "amap", "actor", "has", "streams", "method_info", "device"], WAITS),
        **dict.fromkeys(["call_once", "wait_ready", "world"], WAITS),
        **dict.fromkeys(["devices", "methods", "methods_by_name", "devices_for", "is_starting", "lost"], TOLD),
        **dict.fromkeys(["worlds", "world_of"], "the worlds, which the supervisor tells in its first message"),
        **dict.fromkeys(["run_dir", "host_array", "on_lost", "on_event", "close"], NO_FACT),
        **dict.fromkeys(["name", "epoch", "supervisor_pid"], NO_FACT),
        **dict.fromkeys(["status", "figures", "restart", "reload"], OPERATOR),
        "claim": NEEDS_REFS,
    },
    Device: {
        **dict.fromkeys(["put", "empty", "zeros", "ones", "full", "arange", "statistics"], WAITS),
        **dict.fromkeys(["uuid", "index", "program"], NO_FACT),
        "request": NEEDS_REFS,
    },
    World: {
        **dict.fromkeys(["call", "stream", "actor", "has", "streams", "wait_ready"], WAITS),
        **dict.fromkeys(["info", "state", "epoch"], TOLD),
        "check_priority": NO_FACT,
    },
    MadeWorld: {
        "barrier": "`DeviceUnavailable` says to wait: what is sent once waits for no epoch",
        **dict.fromkeys(["info", "state", "epoch"], TOLD),
        "wait_ready": WAITS,
        "close": NO_FACT,
        "program": NO_FACT,
        **dict.fromkeys(["all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast"], NEEDS_REFS),
        **dict.fromkeys(["all_to_all", "all_to_all_v", "sendrecv"], NEEDS_REFS),
    },
    ActorRef: {},
    WorldActor: {},
}
"""Why each public name of these classes decides nothing from what is not known yet."""


@pytest.mark.parametrize("of", VERDICTS, ids=lambda of: of.__name__)
def test_each_public_way_to_call_has_a_verdict(of: type) -> None:
    """A new one fails here until somebody has decided what it does while devices load, and asks it below."""
    names = {name for base in of.__mro__ if base is not object for name in vars(base) if not name.startswith("_")}
    own = {"name", "epoch", "supervisor_pid", "index"}  # set by constructors
    assert names - VERDICTS[of].keys() == set()
    assert VERDICTS[of].keys() - names <= own


class Loaded(NamedTuple):
    """A pool whose devices load, and what calls its actor."""

    pool: atomr_mp.Pool
    target: Any
    """The pool, or its world."""
    is_world: bool
    open: Callable[[], None]
    """Lets the devices load."""


@contextlib.contextmanager
def loading(ledger: Ledger, how: str, kind: str, count: int = 2) -> Iterator[Loaded]:
    """Lend a client of a pool whose workers wait at a gate in `setup`."""
    run_dir = ledger.run_dir()
    options = ["--backend", "host", "--gpus", str(count), "--actor", LOADING, "--run-dir", str(run_dir)]
    if kind == "world":
        options += ["--world", f"tp={','.join(map(str, range(count)))}"]
    if how == "tcp":
        options += ["--set", f"listen={LISTEN}", "--set", "insecure=true"]
    with (
        ledger.gate("load") as gate,
        subprocess.Popen([sys.executable, "-m", "atomr_mp.cli", "start", *options], stdout=subprocess.DEVNULL) as pool,
        running(pool),
    ):
        gate.wait(count)
        with atomr_mp.connect(run_dir=run_dir) as local, contextlib.ExitStack() as closing:
            client = local
            if how == "tcp":
                assert settled(lambda: bool((found := local.status().remote) and found.listening), DEADLINE_S)
                remote = local.status().remote
                assert remote is not None
                client = closing.enter_context(atomr_mp.connect(remote.address, insecure=True))
            assert client.methods == []
            assert not any(device.admitted for device in client.devices)
            target = client.world("tp") if kind == "world" else client
            try:
                yield Loaded(client, target, kind == "world", lambda: gate.open(count))
            finally:
                gate.open(100)
        pool.terminate()
        pool.wait(DEADLINE_S)


def in_threads(found: Loaded) -> dict[str, tuple[Callable[[], Any], Any]]:
    """Return what threads ask, with the result, by names of `VERDICTS`."""
    pool, target = found.pool, found.target
    asked: dict[str, tuple[Callable[[], Any], Any]] = {
        "call": (lambda: target.call("Loading.add", 1, 2).result(), 3),
        "call by names": (lambda: target.call("Loading.add", kwargs={"left": 1, "right": 5}).result(), 6),
        "call by both": (lambda: target.call("Loading.add", 1, kwargs={"right": 3}).result(), 4),
        "call of a batch": (lambda: target.call("Loading.square", 5).result(), 25),
        "stream": (lambda: list(target.stream("Loading.count", 3)), [0, 1, 2]),
        "stream by both": (lambda: list(target.stream("Loading.count", 3, kwargs={"first": 1})), [1, 2]),
        "actor": (lambda: target.actor("Loading").add(1, right=1).result(), 2),
        "actor, a stream": (lambda: list(target.actor("Loading").count(2)), [0, 1]),
        "actor, wrong": (lambda: hasattr(target.actor("Loading"), "ad"), False),
        "has": (lambda: (target.has("Loading.add"), target.has("Loading.ad")), (True, False)),
        "streams": (lambda: (target.streams("Loading.add"), target.streams("Loading.count")), (False, True)),
        "method_info": (lambda: pool.method_info("Loading.add").parameters, ["left", "right"]),
        "map": (lambda: list(pool.map("Loading.square", range(20))), [n * n for n in range(20)]),
        "wait_ready": (lambda: target.wait_ready(DEADLINE_S), None),
        "device": (lambda: pool.device(1).index, 1),
        "put": (lambda: pool.device(0).put([1, 2]).numpy().tolist(), [1, 2]),
        "empty": (lambda: pool.device(0).empty(3).shape, (3,)),
        "zeros": (lambda: pool.device(0).zeros(1).numpy().tolist(), [0]),
        "ones": (lambda: pool.device(1).ones(1).numpy().tolist(), [1]),
        "full": (lambda: pool.device(1).full(1, 2).numpy().tolist(), [2]),
        "arange": (lambda: pool.device(1).arange(2).numpy().tolist(), [0, 1]),
        "statistics": (lambda: "leases" in pool.device(0).statistics(), True),
        "made world": (lambda: _barrier(pool), [None, None]),
    }
    if not found.is_world:
        options: dict[str, Any] = {"deadline_s": None, "priority": 0}
        asked["call_once"] = lambda: pool.call_once("Loading.add", (1,), {"right": 6}, **options).result(), 7
    else:
        asked["call, each"] = lambda: target.call("Loading.add", 1, 2, each=True).result(), [3, 3]
    return asked


def _barrier(pool: atomr_mp.Pool) -> Any:
    with pool.world([0, 1]) as world:
        world.wait_ready(DEADLINE_S)
        return world.barrier().result()


@pytest.mark.parametrize("kind", ["plain", "world"])
@pytest.mark.parametrize("how", ["local", "tcp"])
def test_what_threads_ask_while_devices_load_is_answered_once_they_have_loaded(
    ledger: Ledger, how: str, kind: str
) -> None:
    """Each as it would be afterwards, and none before: neither a result nor an error is a guess."""
    with loading(ledger, how, kind) as found:
        asked = in_threads(found)
        for of in (type(found.target), Device):
            waiting = {name for name, why in VERDICTS[of].items() if why is WAITS}
            assert waiting <= asked.keys() | {"amap", "world"}, f"nobody asks some of {of.__name__}"
        begun = threading.Barrier(len(asked) + 1)

        def ask(what: Callable[[], Any]) -> Any:
            begun.wait(DEADLINE_S)
            return what()

        with ThreadPoolExecutor(len(asked)) as threads:
            answers = {name: threads.submit(ask, what) for name, (what, _) in asked.items()}
            begun.wait(DEADLINE_S)
            early = {name: each for name, each in answers.items() if each.done() and name != "device"}
            found.open()
            told = {name: each.exception(DEADLINE_S) or each.result() for name, each in answers.items()}
        assert not early, early
        assert told == {name: result for name, (_, result) in asked.items()}


@pytest.mark.parametrize("kind", ["plain", "world"])
@pytest.mark.parametrize("how", ["local", "tcp"])
def test_what_coroutines_ask_while_devices_load_is_answered_once_they_have_loaded(
    ledger: Ledger, how: str, kind: str
) -> None:
    """Calls, streams, maps and actors, whose references do not know yet whether a method streams."""
    with loading(ledger, how, kind) as found:
        pool, target = found.pool, found.target

        async def all_of(source: Any) -> list[Any]:
            return [each async for each in source]

        async def entered(source: Any) -> list[Any]:
            async with source as stream:
                return [each async for each in stream]

        async def result_of(source: Any) -> Any:
            return await source

        async def use() -> Any:
            actor = target.actor("Loading")
            for ask in (target.has, target.streams, pool.method_info):
                with pytest.raises(errors.InvalidRequest, match="the pool is starting"):
                    ask("Loading.add")
            with pytest.raises(errors.InvalidRequest, match="the pool is starting"):
                target.call("Loading.add", 1, kwargs={"right": 3})
            asked = {
                "call": (result_of(target.call("Loading.add", 1, 2)), 3),
                "stream": (all_of(target.stream("Loading.count", 3)), [0, 1, 2]),
                "amap": (all_of(pool.amap("Loading.square", range(40))), [n * n for n in range(40)]),
                "actor": (result_of(actor.add(1, 1)), 2),
                "actor, a stream": (all_of(actor.count(3)), [0, 1, 2]),
                "actor, a stream entered": (entered(actor.count(2)), [0, 1]),
                "actor, a stream's result": (result_of(actor.count(4)), 4),
            }
            tasks = {name: asyncio.ensure_future(what) for name, (what, _) in asked.items()}
            await asyncio.sleep(0)
            assert not [name for name, task in tasks.items() if task.done()]
            found.open()
            told = dict(zip(tasks, await asyncio.gather(*tasks.values(), return_exceptions=True), strict=True))
            assert told == {name: result for name, (_, result) in asked.items()}
            assert await all_of(actor.count(1)) == [0]  # nothing wrong was kept

        in_loop(use)


def _changing() -> dict[str, tuple[Any, Callable[[Any], object], str]]:
    """Return values of each kind, what changes them, and what they were, as text."""

    def zero(array: Any) -> None:
        array[:] = 0

    def both(value: Any) -> None:
        zero(value["inner"][0])
        value["inner"].append(5)
        value["more"] = 6

    return {
        "array": (np.ones(4), zero, "4"),
        "large array": (np.ones(40_000), zero, "40000"),
        "list": ([1, 2], lambda value: value.append(3), "[1, 2]"),
        "nested": ({"inner": [np.ones(3), 2]}, both, "inner: [3, 2]"),
    }


@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize("kind", ["plain", "world"])
def test_arguments_are_taken_when_the_call_is_made(ledger: Ledger, kind: str, *, ready: bool) -> None:
    """Whoever calls may change them at once, however the call is made and however long it waits."""
    with loading(ledger, "local", kind, count=1) as found:
        target = found.target
        if ready:
            found.open()
            target.wait_ready(DEADLINE_S)
        ways: dict[str, Callable[[Any], Any]] = {
            "call": lambda value: target.call("Loading.given", value),
            "call by name": lambda value: target.call("Loading.given", kwargs={"value": value}),
            "stream": lambda value: target.stream("Loading.told", value),
            "stream by name": lambda value: target.stream("Loading.told", kwargs={"value": value}),
        }
        actors: dict[str, Callable[[Any], Any]] = {
            "actor": lambda value: target.actor("Loading").given(value),
            "actor by name": lambda value: target.actor("Loading").given(value=value),
            "actor, a stream": lambda value: target.actor("Loading").told(value),
            "actor, a stream by name": lambda value: target.actor("Loading").told(value=value),
        }

        def made(ways: dict[str, Callable[[Any], Any]]) -> dict[str, tuple[Any, str]]:
            replies = {}
            for way, call in ways.items():
                for of, (value, change, was) in _changing().items():
                    replies[f"{way}: {of}"] = call(value), was
                    change(value)
            return replies

        in_thread = made(ways | actors if ready else ways)

        async def use() -> dict[str, Any]:
            replies = made(ways | actors)
            waits = [repr(reply) for name, (reply, _) in replies.items() if name.startswith("actor")]
            assert ready or all("waits for its method to be known" in each for each in waits)
            read = {name: reply for name, (reply, _) in replies.items() if "stream" in name}
            found.open()
            await asyncio.to_thread(target.wait_ready, DEADLINE_S)
            told = {}
            for name, (reply, was) in replies.items():
                got = [each async for each in reply] if name in read else [await reply]
                got += [await reply] if name in read else []
                if set(got) != {was}:
                    told[name] = got
            return told

        assert not in_loop(use)
        wrong = {name: reply.result() for name, (reply, was) in in_thread.items() if reply.result() != was}
        assert not wrong


def test_a_deadline_counts_from_the_call(ledger: Ledger) -> None:
    """No stream begins anew that was asked for while the pool loaded, and neither does its time."""
    with loading(ledger, "local", "plain", count=1) as found:

        async def use() -> None:
            stream = found.pool.actor("Loading", deadline_s=40.0).count(3)
            late = found.pool.actor("Loading", deadline_s=0.2).count(3)
            left = found.pool.actor("Loading").count(3)
            left.cancel()
            called_ns = time.monotonic_ns()
            with pytest.raises(errors.DeadlineExceeded):
                await late
            for ended, error in ((late, errors.DeadlineExceeded), (left, errors.Cancelled)):
                with pytest.raises(error):
                    [each async for each in ended]
            found.open()
            assert [each async for each in stream] == [0, 1, 2]
            assert stream._stream._reply.until_ns <= called_ns + int(40e9)

        in_loop(use)


@pytest.mark.parametrize("in_a_loop", [False, True])
@pytest.mark.parametrize("kind", ["plain", "world"])
def test_a_request_learns_of_its_method_before_it_is_sent(ledger: Ledger, kind: str, *, in_a_loop: bool) -> None:
    """The method's own deadline, if the caller has given none, and whether a stream of it resumes."""
    with loading(ledger, "local", kind, count=1) as found:
        target = found.target

        async def use() -> None:
            before_ns = time.monotonic_ns()
            call, given = target.call("Loading.add", 1), target.call("Loading.add", 1, deadline_s=40.0)
            stream = target.stream("Loading.count", 1)
            after_ns = time.monotonic_ns()
            assert call.undeclared is not None
            found.open()
            if in_a_loop:
                await call, await given, await stream
            else:
                call.result(), given.result(), stream.result()
            assert before_ns <= call.deadline_ns - int(OWN_DEADLINE_S * 1e9) <= after_ns
            assert before_ns <= given.deadline_ns - int(40.0 * 1e9) <= after_ns
            assert stream._reply.resumes is not Resumes.NEVER

        if in_a_loop:
            in_loop(use)
        else:
            with pytest.raises(StopIteration):
                use().send(None)


def test_the_server_does_not_take_for_missing_what_still_loads(ledger: Ledger) -> None:
    """Neither a method nor a model: it answers 503, which clients try again."""
    from atomr_mp.serve.openai import declared
    from atomr_mp.serve.pool_calls import PoolCalls

    nothing: Any = SimpleNamespace()
    with loading(ledger, "local", "plain", count=1) as found:
        for ask in (
            lambda: PoolCalls(nothing, nothing).plan(found.pool, "Loading.add"),
            lambda: declared.method_of(found.pool, "Loading", "chat"),
            lambda: declared.models(found.pool),
        ):
            with pytest.raises(errors.PoolUnreachable):
                ask()

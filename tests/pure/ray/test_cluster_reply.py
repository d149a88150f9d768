from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection, Generator
from typing import Any, cast

import pytest

from atomr_mp import errors
from atomr_mp.client.reply import Reply
from atomr_mp.client.taken_arguments import kept
from atomr_mp.mapping.schedule import Failure
from atomr_mp.ray.cluster_map import run_map
from atomr_mp.ray.cluster_reply import Attempt, ClusterReply
from atomr_mp.ray.failover import ClusterCall
from tests.fakes.answered import Answered


class Nodes:
    """Sends calls to nodes whose answers are given beforehand.

    Args:
        answers: The answers.
        started: Whether a call that was lost with its pool may have started.
    """

    def __init__(self, *answers: Answered | errors.AtomrError, started: bool = True) -> None:
        self.left = list(answers)
        self.started = started
        self.asked: list[int] = []
        self.avoided: list[set[int]] = []

    def may_have_started(self, attempt: Attempt) -> bool:
        """Return what the test says."""
        self.asked.append(attempt.node)
        return self.started

    def send(self, call: ClusterCall, avoid: Collection[int] = ()) -> Attempt:
        """Return the next answer, from the next node."""
        self.avoided.append(set(avoid))
        answer = self.left.pop(0)
        if isinstance(answer, errors.AtomrError):
            raise answer
        return Attempt(len(self.avoided) - 1, cast("Reply", answer), call)

    def call(self, *, idempotent: bool = True, node: int | None = None, unsent: bool = False) -> ClusterReply:
        """Make a call."""
        call = ClusterCall(
            "A.m", kept((), {}), None, None, time.monotonic_ns() + 10**10, node=node, idempotent=idempotent
        )
        return ClusterReply(call, self, None if unsent else self.send(call, ()))


def lost(*, maybe_executed: bool = True) -> Answered:
    """Return the answer of a node that was lost."""
    return Answered(error=errors.SessionLost("gone", maybe_executed=maybe_executed))


def test_a_call_that_may_run_twice_goes_on_until_a_node_answers() -> None:
    """Its caller gets the answer."""
    reply = Nodes(lost(), lost(), Answered(7)).call()
    assert not reply.done
    assert reply.result() == 7
    assert (reply.done, reply.node) == (True, 2)


def test_a_call_that_may_have_run_is_not_sent_again() -> None:
    """At most once holds across nodes."""
    nodes = Nodes(lost(), Answered(7))
    error = nodes.call(idempotent=False).exception()
    assert isinstance(error, errors.PoolLost)
    assert error.maybe_executed
    assert len(nodes.left) == 1


def test_a_call_that_its_node_has_not_started_is_sent_again() -> None:
    """Its node is asked once for each attempt; a call that may have started, or may not move, ends, and says so."""
    nodes = Nodes(lost(), lost(), Answered(7), started=False)
    reply = nodes.call(idempotent=False)
    assert not reply.done
    assert (reply.result(), nodes.asked) == (7, [0, 1])
    nodes = Nodes(lost(), Answered(7), started=True)
    reply = nodes.call(idempotent=False)
    for _ in range(2):
        error = reply.exception()
        assert isinstance(error, errors.PoolLost)
        assert error.maybe_executed
    assert (reply.done, nodes.asked) == (True, [0])
    nodes = Nodes(lost(), Answered(7), started=False)
    assert nodes.call(idempotent=False, node=0).exception() is not None
    assert not nodes.asked


def test_a_call_that_has_not_started_and_finds_no_other_node_says_that_it_has_not_run() -> None:
    """Its caller may send it again."""
    error = Nodes(lost(), errors.PoolUnreachable("nobody"), started=False).call(idempotent=False).exception()
    assert isinstance(error, errors.PoolLost)
    assert not error.maybe_executed


def test_a_call_that_certainly_has_not_run_is_sent_again() -> None:
    """Nothing is lost then."""
    assert Nodes(lost(maybe_executed=False), Answered(7)).call(idempotent=False).result() == 7


def test_an_error_says_whether_any_attempt_may_have_run() -> None:
    """The second node's refusal does not undo what the first may have done."""
    nodes = Nodes(lost(), Answered(error=errors.InvalidRequest("no", maybe_executed=False)))
    with pytest.raises(errors.InvalidRequest) as raised:
        nodes.call().result()
    assert raised.value.maybe_executed


def test_a_node_without_devices_is_avoided() -> None:
    """The call goes to the others, and ends with the node's own error if there are none."""
    nodes = Nodes(Answered(error=errors.DeviceUnavailable("stopped")), errors.DeviceUnavailable("none"))
    error = nodes.call(idempotent=False).exception()
    assert isinstance(error, errors.DeviceUnavailable)
    assert error.message == "stopped"
    assert nodes.avoided == [set(), {0}]


def test_an_error_speaks_of_the_node_and_not_of_its_relay() -> None:
    """No caller of a cluster has a session that it could open again, or a key to be admitted."""

    async def wait(reply: ClusterReply) -> Any:
        return await reply

    for maybe_executed in (False, True):
        reply = Nodes(lost(maybe_executed=maybe_executed)).call(node=0)
        told = [reply.exception()]
        for ask in (reply.result, lambda reply=reply: asyncio.run(wait(reply))):
            with pytest.raises(errors.PoolLost) as raised:
                ask()
            told.append(raised.value)
        for error in told:
            assert type(error) is errors.PoolLost
            assert error.maybe_executed is maybe_executed
            assert "the session with node 0 has ended" in error.message


def test_a_call_whose_node_was_named_ends_with_its_loss() -> None:
    """It was to run there."""
    assert isinstance(Nodes(lost(), Answered(7)).call(node=0).exception(), errors.PoolLost)


def test_a_cancelled_call_is_not_sent_again() -> None:
    """It is unwanted."""
    nodes = Nodes(first := lost(), Answered(7))
    reply = nodes.call()
    reply.cancel()
    assert first.cancelled
    assert isinstance(reply.exception(), errors.PoolLost)


def test_several_threads_that_wait_send_a_lost_call_once() -> None:
    """Each gets the same answer."""
    nodes = Nodes(lost(), Answered(7))
    reply, results = nodes.call(), list[int]()
    threads = [threading.Thread(target=lambda: results.append(reply.result())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert results == [7] * 8
    assert len(nodes.avoided) == 2


def test_a_task_gets_the_answer_of_another_node() -> None:
    """Also where no node was reached when the call was made."""

    async def wait(reply: ClusterReply) -> Any:
        return await reply

    assert asyncio.run(wait(Nodes(lost(), Answered(7)).call())) == 7
    assert asyncio.run(wait(Nodes(Answered(8)).call(unsent=True))) == 8
    with pytest.raises(errors.PoolUnreachable):
        asyncio.run(wait(Nodes(errors.PoolUnreachable("nobody")).call(unsent=True)))


def test_a_callback_comes_once_with_the_answer() -> None:
    """After a loss it comes when another node has answered."""
    called = threading.Event()
    told: list[int] = []

    def callback(reply: ClusterReply) -> None:
        told.append(reply.result())
        called.set()

    Nodes(lost(), Answered(7)).call().add_done_callback(callback)
    assert called.wait(10)
    assert told == [7]


def test_a_map_yields_in_order_and_goes_on_behind_failures() -> None:
    """Each item comes out once; a full window waits for the oldest."""
    refuse = [1]

    def call(item: int) -> ClusterReply:
        if item == 3:
            raise errors.InvalidRequest("three")
        if item == 5 and refuse:
            refuse.clear()
            raise errors.Overloaded("full")
        return Nodes(Answered(2 * item)).call()

    found = list(run_map(call, range(7), 2, return_failures=True))
    assert [each for each in found if not isinstance(each, Failure)] == [0, 2, 4, 8, 10, 12]
    (failure,) = [each for each in found if isinstance(each, Failure)]
    assert (failure.index, failure.attempts, found[3]) == (3, 0, failure)


def test_what_a_map_lost_with_a_node_runs_again_side_by_side() -> None:
    """The items do not wait for each other's turn."""
    nodes: list[Nodes] = []

    def call(item: int) -> ClusterReply:
        nodes.append(Nodes(lost(), Answered(item)))
        return nodes[-1].call()

    results = run_map(call, range(4), 4, return_failures=False)
    assert next(results) == 0
    assert [len(each.avoided) for each in nodes] == [2, 2, 2, 2]
    assert list(results) == [1, 2, 3]


def test_a_map_that_is_left_cancels_what_is_under_way() -> None:
    """It has no reader."""
    made: list[Answered] = []

    def call(item: int) -> ClusterReply:
        made.append(Answered(item))
        return Nodes(made[-1]).call()

    results = run_map(call, iter(range(100)), 4, return_failures=False)
    assert next(results) == 0
    cast("Generator[Any, None, None]", results).close()
    assert [each.cancelled for each in made] == [False, True, True, True]

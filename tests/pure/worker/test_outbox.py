"""Walks over a worker's requests: whatever refuses, drops or runs one, its answer is sent before the loop sleeps."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atomr_mp.protocol import values
from atomr_mp.protocol.libraries.program import RunProgram, digest
from atomr_mp.protocol.messages import data
from atomr_mp_workers.memory import content
from atomr_mp_workers.requests.peers import Peer
from tests.pure.worker.test_dispatch import NEVER_NS, TOKEN, Worker

KINDS = ("run", "few", "unknown", "undecodable", "undefined", "no method")
CLIENTS = 3
SESSIONS = itertools.cycle(range(1, 250))
WORKER = Worker()
UNDEFINED = WORKER.store.buffers.allocate(WORKER.store.buffers.ours, "float64", (4,))
UNDEFINED.block.borrows.content = content.after_failure(
    None, content.WrittenPart(UNDEFINED.layout), content.Culprit("Logged.run", 1, "actor_failed", "half done", 0)
)


class Turns(RuleBasedStateMachine):
    """Clients whose calls run, are refused, cancelled or late, together or alone; the loop takes its turns."""

    def __init__(self) -> None:
        super().__init__()
        self.worker = WORKER
        self.clients = {number: self.worker.client(next(SESSIONS)) for number in range(1, CLIENTS + 1)}
        self.asked: dict[int, Peer] = {}
        """By request: who has sent it, if that one is there still."""
        self.got: Counter[int] = Counter()
        self.ids = 0

    def call(self, peer: Peer, kind: str, *, late: bool) -> data.Call:
        """Return a call of a kind."""
        self.ids += 1
        self.asked[self.ids] = peer
        method, arguments, refs = f"Logged.{kind}", (self.ids,), 0
        body = values.encode(arguments)[0]
        if kind == "unknown":
            method = "program.run"
            body = values.encode(RunProgram(b"", [], [], [], digest(b"other"), 0))[0]
        elif kind == "undecodable":
            method, body = "Logged.run", b"\xc1"
        elif kind == "undefined":
            method, refs = "Logged.run", 1
            self.worker.store.lease(peer.session.holder, UNDEFINED)
            body = values.encode((UNDEFINED,))[0]
        return data.Call(self.ids, method, 1 if late else NEVER_NS, 0, body, refs=refs)

    @rule(
        client=st.integers(1, CLIENTS),
        kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
        late=st.booleans(),
    )
    def arrive(self, client: int, kinds: list[str], *, late: bool) -> None:
        """A message with calls arrives."""
        peer = self.clients[client]
        message = data.Calls(TOKEN, [self.call(peer, kind, late=late) for kind in kinds])
        self.worker.dispatcher.take(self.worker.envelope.open(peer, message, []))

    @rule(client=st.integers(1, CLIENTS), kind=st.sampled_from(KINDS), late=st.booleans())
    def arrive_alone(self, client: int, kind: str, *, late: bool) -> None:
        """A call arrives that is to run alone."""
        peer = self.clients[client]
        message = data.Alone(TOKEN, [self.call(peer, kind, late=late)])
        self.worker.dispatcher.take_alone(self.worker.envelope.open(peer, message, []))

    @rule(number=st.integers(1, 30))
    def cancel(self, number: int) -> None:
        """A client takes a call back."""
        if number in self.asked:
            self.worker.dispatcher.cancel(self.asked[number], [number])

    @rule(client=st.integers(1, CLIENTS))
    def lose(self, client: int) -> None:
        """A connection of a client is lost."""
        self.worker.envelope.lose(self.clients[client])
        self.worker.dispatcher.advance()

    @rule(client=st.integers(1, CLIENTS))
    def leave(self, client: int) -> None:
        """A client ends, and another one comes."""
        peer = self.clients.pop(client)
        self.send()
        session = self.worker.peers.end(peer.session.number)
        assert session is not None
        self.worker.envelope.discard(session)
        self.worker.dispatcher.advance()
        self.worker.store.reclaim(peer.session.number)
        self.asked = {number: each for number, each in self.asked.items() if each is not peer}
        self.clients[client] = self.worker.client(next(SESSIONS))

    @rule()
    def work(self) -> None:
        """The loop runs what there is."""
        self.worker.run()

    def send(self) -> None:
        """The loop sends what its outbox names, as before it sleeps."""
        outbox = self.worker.envelope.answers.outbox
        while outbox:
            peer, _ = outbox.popitem()
            self.got.update(reply.id for reply in peer.replies)
            peer.replies, peer.reply_bytes = [], 0

    @precondition(lambda self: self.asked)
    @rule()
    def settle(self) -> None:
        """Once nothing is left to do, each call of a client that is there has been answered, once."""
        for _ in range(3):  # the first turn may withhold answers, which the next one gives
            self.worker.run()
            self.worker.dispatcher.advance()
            self.worker.envelope.answers.end_turn()
            self.send()
        assert not self.worker.dispatcher.busy
        assert {number for number in self.asked if self.got[number] != 1} == set()

    @invariant()
    def what_is_answered_is_about_to_be_sent(self) -> None:
        """Else it would stay until something else happens to its client."""
        outbox = self.worker.envelope.answers.outbox
        assert all(peer in outbox for peer in self.clients.values() if peer.replies or peer.parts)

    def teardown(self) -> None:
        """The worker is left for the next walk."""
        self.settle()
        for client in range(1, CLIENTS + 1):
            self.leave(client)


TestTurns: Any = Turns.TestCase

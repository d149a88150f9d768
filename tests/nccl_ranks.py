"""Processes of a world by NCCL, without a pool: this one is their supervisor. By the library, or `FakeNccl`.

Each process has a loop with a real `Membership`, and runs what it is given as text, with these names: `rank`, `size`,
`world`, `engine`, `member`, `nccl`, `cp` (CuPy, or what stands for it), `np` and `sent`, the messages that it has sent.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Self, cast

from atomr_mp import errors
from atomr_mp.protocol.messages import control
from atomr_mp.protocol.messages.control import WorldFile, WorldFileKind
from tests.framing import LENGTH, exactly
from tests.world_files import WorldSupply

LIMIT_S: Final = 60.0
WORLD: Final = 1


class NcclProcess:
    """One process.

    Args:
        rank: Its rank.
        size: How many ranks there are.
        generation: Its generation.
        gpus: How many GPUs there are; it has the one of its rank.
        stand_in: The directory of `FakeNccl`; None for the library.
        spares: Whether communicators are formed ahead.
    """

    def __init__(
        self, rank: int, size: int, generation: int, gpus: int, stand_in: Path | None, *, spares: bool
    ) -> None:
        self.rank: Final = rank
        self.generation: Final = generation
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(LIMIT_S)
        environment = dict(os.environ)
        if stand_in is None:
            given = os.environ.get("CUDA_VISIBLE_DEVICES")
            every = given.split(",") if given else [str(each) for each in range(gpus)]
            visible = [every[rank], *(each for number, each in enumerate(every) if number != rank)]
            environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(visible)}
        given_to = [theirs.fileno(), rank, size, generation, int(spares), stand_in or ""]
        self.process: Final = subprocess.Popen(
            [sys.executable, "-m", "tests.nccl_ranks", *map(str, given_to)],
            pass_fds=(theirs.fileno(),),
            env=environment,
        )
        theirs.close()

    def take_page(self) -> int:
        """Return its page, once it has made it; it is the caller's."""
        _, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
        assert descriptors, "the process has ended"
        return descriptors[0]

    def give(self, file: WorldFile, descriptor: int) -> None:
        """Give it a file; the descriptor is the callee's."""
        self.send(f"take_file({int(file.kind)}, {file.rank}, {file.generation})")
        socket.send_fds(self._socket, [b"f"], [descriptor])
        os.close(descriptor)
        self.get()

    def send(self, code: str) -> None:
        """Have it run a text; its value is got by `get`."""
        given = code.encode()
        self._socket.sendall(LENGTH.pack(len(given)) + given)

    def call(self, code: str) -> None:
        """Have it run a text in a gang call; `get` gets the value, or the error in words."""
        self.send(f"call({code!r})")

    def get(self, limit_s: float = LIMIT_S) -> Any:
        """Wait for the value of the text that was sent."""
        self._socket.settimeout(limit_s)
        (length,) = LENGTH.unpack(exactly(self._socket, LENGTH.size))
        found = pickle.loads(exactly(self._socket, length))
        if isinstance(found, str) and found.startswith("raised "):
            raise AssertionError(found)
        return found

    def do(self, code: str) -> Any:
        """Have it run a text, and wait for its value."""
        self.send(code)
        return self.get()

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """End it, and close all."""
        self.process.kill()
        self.process.wait()
        self._socket.close()


class NcclWorld:
    """The members of a world, and their supervisor.

    Args:
        size: How many ranks there are.
        gpus: How many GPUs there are.
        stand_in: The directory of `FakeNccl`; None for the library.
        spares: Whether communicators are formed ahead.
    """

    def __init__(self, size: int, gpus: int = 0, stand_in: Path | None = None, *, spares: bool = False) -> None:
        self.size: Final = size
        self.epoch = 0
        self.all: Final[list[NcclProcess]] = []
        """The members, by rank."""
        self._supply: Final = WorldSupply(WORLD)
        self._rest: Final = gpus, stand_in
        self._spares: Final = spares
        self._processes: Final[dict[tuple[int, int], NcclProcess]] = {}
        self._pages: Final[dict[tuple[int, int], int]] = {}
        self._given: Final[set[tuple[tuple[int, int], tuple[int, int]]]] = set()
        for rank in range(size):
            self.all.append(self.start(rank, 1))

    def start(self, rank: int, generation: int) -> NcclProcess:
        """Start a process, and exchange its page with all others; it is no member yet."""
        made = NcclProcess(rank, self.size, generation, *self._rest, spares=self._spares)
        for file, descriptor in self._supply.own_files(rank, generation):
            made.give(file, descriptor)
        made.send("begin()")
        own = self._pages[rank, generation] = made.take_page()
        made.get()
        for where, other in list(self._processes.items()):
            if where[0] != rank and other.process.poll() is None:
                made.give(WorldFile(WORLD, *where, WorldFileKind.MAILBOX), os.dup(self._pages[where]))
                other.give(WorldFile(WORLD, rank, generation, WorldFileKind.MAILBOX), os.dup(own))
                other.do("member.mailbox_came()")
        self._processes[rank, generation] = made
        return made

    @property
    def generations(self) -> list[int]:
        """The members' generations, by rank."""
        return [each.generation for each in self.all]

    def ask_to_join(self) -> None:
        """Ask all members to join the next epoch, with each other's files."""
        self.epoch += 1
        for each in self.all:
            for other in self.all:
                pair = (each.rank, each.generation), (other.rank, other.generation)
                if each is not other and pair not in self._given:
                    self._given.add(pair)
                    for file, descriptor in self._supply.files(other.rank, other.generation):
                        each.give(file, descriptor)
            each.send(f"join({self.epoch}, {self.generations})")
        for each in self.all:
            each.get()

    def join(self) -> None:
        """Have all members join the next epoch, and wait until they have."""
        self.ask_to_join()
        for each in self.all:
            each.send(f"joined({self.epoch})")
        assert [each.get() for each in self.all] == ["joined"] * self.size

    def stop(self) -> float:
        """Store the stop word, and ring the members; return when that was."""
        self._supply.end(self.epoch, self.generations)
        return time.monotonic()

    def leave(self, *members: NcclProcess) -> list[Any]:
        """Ask these members to leave, and return what each says of it."""
        for each in members:
            each.send(f"leave({self.epoch})")
        return [each.get() for each in members]

    def replace(self, member: NcclProcess, other: NcclProcess) -> None:
        """Have a process take the place of another one that has ended."""
        self.all[member.rank] = other
        del self._processes[member.rank, member.generation]
        for each in self._processes.values():
            if each.rank != member.rank and each.process.poll() is None:
                each.do(f"member.incarnation_over({member.rank}, {member.generation})")
        member.close()

    def call(self, code: str) -> list[Any]:
        """Run a gang call on all members; return what it returns or raises, by rank."""
        for each in self.all:
            each.call(code)
        return [each.get() for each in self.all]

    def each(self, code: str) -> list[Any]:
        """Have all members run a text at once; return its values by rank."""
        for each in self.all:
            each.send(code)
        return [each.get() for each in self.all]

    def close(self) -> None:
        """End all."""
        for each in self._processes.values():
            each.close()
        for page in self._pages.values():
            os.close(page)
        self._supply.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


class _Member:
    """What runs in a process."""

    def __init__(self, connection: socket.socket, given: Sequence[str]) -> None:
        self.connection = connection
        self.rank, self.size, self.generation = map(int, given[:3])
        self.spares = bool(int(given[3]))
        self.stand_in = given[4]
        self.sent: list[Any] = []
        self.names: dict[str, Any] = {}
        self.rung = threading.Event()
        self.lock = threading.RLock()
        self.meeting: Any = None
        self.sequence = 0
        from atomr_mp_workers.worlds.order.files import WorldFiles

        self.files = WorldFiles()

    def take_file(self, kind: int, rank: int, generation: int) -> None:
        """Take a file, which comes with this."""
        descriptor = socket.recv_fds(self.connection, 1, 1)[1][0]
        with self.lock:
            self.files.add(WorldFile(WORLD, rank, generation, WorldFileKind(kind)), descriptor)

    def begin(self) -> None:
        """Make a place in the world, and send its page."""
        if self.stand_in:
            from tests.fakes import fake_cupy

            cupy: Any = fake_cupy.install()
            from tests.fakes.fake_nccl import FakeNccl

            nccl: Any = FakeNccl(Path(self.stand_in))
        else:
            import cupy as on_device

            from atomr_mp_workers.worlds.nccl import library

            cupy = on_device
            cupy.cuda.Device(0).use()
            cupy.cuda.runtime.free(0)
            nccl = library.load()
        import numpy as np

        from atomr_mp_workers.worlds.exchange.world import OwnWorld
        from atomr_mp_workers.worlds.membership import Membership
        from atomr_mp_workers.worlds.nccl.engine import NcclEngine
        from atomr_mp_workers.worlds.running.gang_queue import GangQueue

        place = "tp", self.rank, self.size
        replace = lambda why: self.sent.append(control.Unsound(why))  # noqa: E731
        self.engine = NcclEngine(*place, self.generation, self.files, nccl, replace, spares=self.spares)
        world = OwnWorld(*place, self.engine.rehearse, self.engine.collectives, graphs=False)
        offered = control.WorldOffered(WORLD, *place, self.generation, ["A"], 10.0, devices=list(range(self.size)))
        thread = SimpleNamespace(meet=self.meet, ahead=0)
        self.member = Membership(
            offered,
            self.files,
            world,
            cast("Any", thread),
            GangQueue(),
            self.engine.make_meeting,
            self.sent.append,
            self.rung.set,
            self.engine,
        )
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.names |= {"world": world, "engine": self.engine, "member": self.member, "nccl": nccl, "cp": cupy, "np": np}
        self.names |= {"rank": self.rank, "size": self.size, "sent": self.sent, "rehearse": self.rehearse}
        page = self.engine.export()
        socket.send_fds(self.connection, [b"f"], [page])
        os.close(page)
        threading.Thread(target=self.loop, daemon=True).start()

    def rehearse(self, code: str) -> Any:
        """Run a text before this process serves."""
        with self.stream:
            return _plain(eval(code, self.names))

    def meet(self, meeting: Any) -> None:
        """Stand for the thread's."""
        self.meeting = meeting

    def loop(self) -> None:
        """Look whenever somebody rings."""
        bell = self.files.loop_bell(self.rank, self.generation)
        while True:
            self.rung.wait(0.0005)
            self.rung.clear()
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(bell)
            with self.lock:
                self.member.look(time.monotonic_ns())

    def join(self, epoch: int, generations: list[int]) -> None:
        """Be asked to join an epoch."""
        self.sequence = 0
        if not self.member._rehearses:
            pass
        else:
            self.member.serve()
        with self.lock:
            self.member.join(control.JoinEpoch(WORLD, epoch, generations))

    def joined(self, epoch: int) -> str:
        """Wait until it has joined, or has left; say which."""
        joined = control.EpochJoined(WORLD, epoch)
        while True:
            for each in list(self.sent):
                if each == joined:
                    return "joined"
                if isinstance(each, control.EpochLeft) and each.epoch == epoch:
                    return f"left{' unfit' * each.unfit}: {each.reason}"
            time.sleep(0.0002)

    def leave(self, epoch: int) -> str:
        """Be asked to leave, and wait until it has."""
        with self.lock:
            self.member.depart(control.DepartEpoch(WORLD, epoch, 0, "died"))
        self.rung.set()
        while True:
            for each in list(self.sent):
                if isinstance(each, control.EpochLeft) and each.epoch == epoch:
                    return f"left{' unfit' * each.unfit}: {each.reason}"
            time.sleep(0.0002)

    def call(self, code: str) -> Any:
        """Run a text in a gang call."""
        epoch = self.member._epoch
        if epoch is None or self.meeting is None:
            return "outside"
        self.sequence += 1
        sequence, meeting = self.sequence, self.meeting
        epoch.writer.begin(sequence)
        meeting.begin(sequence)
        try:
            with self.stream:
                value = eval(code, self.names)
                found = meeting.settled()
                if found is not None:
                    raise found
                return _plain(value)
        except errors.AtomrError as error:
            return f"{type(error).__name__}: {error}"
        finally:
            epoch.writer.end(sequence)
            meeting.end()

    def serve(self) -> None:
        """Run what comes."""
        for name in ("take_file", "begin", "join", "joined", "leave", "call"):
            self.names[name] = getattr(self, name)
        while True:
            try:
                (length,) = LENGTH.unpack(exactly(self.connection, LENGTH.size))
                code = exactly(self.connection, length).decode()
            except AssertionError:
                os._exit(0)
            try:
                try:
                    value = eval(compile(code, "<given>", "eval"), self.names)
                except SyntaxError:
                    exec(compile(code, "<given>", "exec"), self.names)
                    value = None
                packed = pickle.dumps(value)
            except BaseException:  # noqa: BLE001 - it is told
                packed = pickle.dumps(f"raised {traceback.format_exc()}")
            self.connection.sendall(LENGTH.pack(len(packed)) + packed)


def _plain(value: Any) -> Any:
    """Return arrays in the host's memory."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.get() if hasattr(value, "get") else value


if __name__ == "__main__":
    _Member(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]).serve()

"""A front-end process: answers HTTP on a socket that its parent owns, perhaps gRPC too, and joins the pool itself.

The parent starts it. Its arguments are the descriptors of the plan, the listening socket and the counters' memory, its
slot there, a descriptor to which it writes when it accepts, one of the memory of the latest sample, one to which it
writes its log, and those of the memory of sequences and of clients' regions. What goes to standard error instead is a
crash, or of code that is not ours. After SIGTERM it reports that it is not ready, still accepts for a while, then ends
open requests and exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import functools
import os
import signal
import socket
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from atomr_mp import output, tracing
from atomr_mp.pool import Pool
from atomr_mp.process.prctl import die_with_parent
from atomr_mp.serve.application import Application, FrontEndMemory
from atomr_mp.serve.front_end.connection import Asgi
from atomr_mp.serve.front_end.middleware import SurroundedApplication
from atomr_mp.serve.front_end.plan import FrontEndPlan
from atomr_mp.serve.front_end.server import HttpServer
from atomr_mp.serve.http.access import Access, Tokens
from atomr_mp.serve.http.cors import Cors
from atomr_mp.serve.metrics import BEAT_S, FRONT_END, Counters
from atomr_mp.serve.oip.sequences.table import SequenceTable
from atomr_mp.serve.oip.shared_memory.table import RegionTable
from atomr_mp.serve.server_log import lost_notice, start_logging
from atomr_mp.serve.source import JoinedPool
from atomr_mp.serve.watch.shared_sample import SharedSample

if TYPE_CHECKING:
    from atomr_mp.serve.oip.grpc.server import GrpcServer

JOIN_S: Final = 5.0
"""How long a front end waits for its pool before it accepts."""


def main() -> int:
    """Serve until the parent orders the end, or ends."""
    plan = FrontEndPlan.from_descriptor(int(sys.argv[1]))
    die_with_parent(plan.parent_pid)
    output.protect()
    faulthandler.enable()  # the parent ends a front end that hangs by SIGABRT, for its stack
    start_logging(plan.log_format, output.open_pipe(int(sys.argv[7]), lost_notice(plan.log_format)))
    tracing.forward()
    counters = Counters(int(sys.argv[3]), plan.slots, int(sys.argv[4]))
    with asyncio.Runner(loop_factory=_loop) as runner:
        sequences = SequenceTable(plan.limits.sequences, int(sys.argv[8]))
        regions = RegionTable(int(sys.argv[9]), plan.limits) if plan.shared_memory else None
        memory = FrontEndMemory(counters, SharedSample(int(sys.argv[6])), sequences, regions)
        runner.run(_serve(plan, socket.socket(fileno=int(sys.argv[2])), int(sys.argv[5]), memory))
    return 0


def _loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


async def _serve(plan: FrontEndPlan, listening: socket.socket, accepts: int, memory: FrontEndMemory) -> None:
    counters = memory.counters
    source = JoinedPool(Path(plan.run_dir), f"{FRONT_END}{counters.slot}")
    tokens = Tokens(plan.tokens, None if plan.token_file is None else Path(plan.token_file))
    cors = Cors(plan.cors_origins, has_tokens=bool(tokens))
    application = Application(
        source,
        Access(tokens, plan.allowed_hosts, cors),
        models=plan.models,
        limits=plan.limits,
        memory=memory,
        debug=plan.debug,
        access_log=plan.access_log,
        log_errors=plan.log_errors,
        forwards_traces=True,
    )
    served: Asgi = application
    if plan.middleware:
        served = SurroundedApplication(application, plan.middleware, cors, counters)
    server = HttpServer(
        served, plan.limits, counters, application.unread, tls=_tls(plan), own_user_only=plan.own_user_only
    )
    grpc_server = _grpc(plan, application)
    loop = asyncio.get_running_loop()
    ending = asyncio.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, and then sends SIGTERM
    loop.add_signal_handler(signal.SIGTERM, ending.set)
    knows_methods = _methods_known(source)
    tasks = [loop.create_task(source.keep_joined()), loop.create_task(_beat(counters, application))]
    try:
        # Other front ends accept meanwhile; without a pool this one accepts too, and reports that.
        await source.wait_joined(JOIN_S)
        if grpc_server is not None:
            application.begin()
            await grpc_server.start(plan.grpc_address, plan.grpc_uds, _certificate(plan))
        await server.start(listening)
        tasks.append(loop.create_task(_announce(knows_methods, accepts)))
        await ending.wait()
        application.drain()
        await asyncio.sleep(plan.drain_delay_s)  # as long as the operator has said that balancers take
        application.end_streams()
        ends = [server.end(plan.drain_timeout_s)]
        if grpc_server is not None:
            ends.append(grpc_server.end(plan.drain_timeout_s))
        await asyncio.gather(*ends)
    finally:
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        application.close()


async def _announce(knows_methods: asyncio.Event, accepts: int) -> None:
    """Tell the parent that calls are answered: the server announces itself once its pool is ready, too."""
    await knows_methods.wait()
    with contextlib.suppress(OSError):
        os.write(accepts, b".")


def _methods_known(source: JoinedPool) -> asyncio.Event:
    """Return an event that is set once this process has heard from the supervisor which methods there are.

    Each process hears of it at a time of its own, and refuses calls before.
    """
    loop, known = asyncio.get_running_loop(), asyncio.Event()

    def look(pool: Pool) -> None:
        if not known.is_set() and pool.methods:
            known.set()

    def heard(pool: Pool, _event: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(look, pool)

    def joined(pool: Pool) -> None:
        pool.on_event(functools.partial(heard, pool))
        look(pool)

    source.listeners.append(joined)
    return known


async def _beat(counters: Counters, application: Application) -> None:
    """Show the parent that the event loop turns, and look at the file of tokens."""
    while True:
        counters.beat()
        application.look_at_tokens()
        await asyncio.sleep(BEAT_S)  # a heartbeat is a matter of time


def _grpc(plan: FrontEndPlan, application: Application) -> GrpcServer | None:
    """Return the server of gRPC; None without its options."""
    if not (plan.grpc_address or plan.grpc_uds):
        return None
    from atomr_mp.serve.oip.grpc.frame import Grounds
    from atomr_mp.serve.oip.grpc.server import GrpcServer
    from atomr_mp.serve.oip.grpc.service import GrpcService

    grounds = Grounds(
        application.inference,
        application.access,
        application.accounts,
        application.counters,
        application.streams,
        application.budget,
        plan.limits,
        application.unread,
    )
    return GrpcServer(GrpcService(grounds), plan.limits)


def _certificate(plan: FrontEndPlan) -> tuple[Path, Path] | None:
    """Return the certificate chain and its private key; None without TLS."""
    if plan.tls_certificate is None or plan.tls_key is None:
        return None
    return Path(plan.tls_certificate), Path(plan.tls_key)


def _tls(plan: FrontEndPlan) -> ssl.SSLContext | None:
    if plan.tls_certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(plan.tls_certificate, plan.tls_key)
    return context


if __name__ == "__main__":
    sys.exit(main())

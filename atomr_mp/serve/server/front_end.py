"""A front-end process: answers HTTP on a socket that its parent owns, and joins the pool itself.

`parent.py` starts it. Its arguments are the descriptors of the plan, the listening socket and the counters' memory, its
slot there, a descriptor to which it writes when it accepts, and one of the memory of the latest look. After SIGTERM it
reports that it is not ready, still accepts for a while, then ends open requests and exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import uvicorn

from atomr_mp import output
from atomr_mp.process.prctl import die_with_parent
from atomr_mp.serve.application import Application
from atomr_mp.serve.http.access import Access, Tokens
from atomr_mp.serve.metrics import Counters
from atomr_mp.serve.server.connection import HttpConnection
from atomr_mp.serve.server.plan import FrontEndPlan
from atomr_mp.serve.source import JoinedPool
from atomr_mp.serve.watch.shared_look import SharedLook

BACKLOG: Final = 2048

JOIN_S: Final = 5.0
"""How long a front end waits for its pool before it accepts."""

_LOG: Final = logging.getLogger("atomr_mp.serve")


def main() -> int:
    """Serve until the parent orders the end, or ends."""
    plan = FrontEndPlan.from_descriptor(int(sys.argv[1]))
    die_with_parent(plan.parent_pid)
    output.protect()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, stream=sys.stderr)
    counters = Counters(int(sys.argv[3]), plan.slots, int(sys.argv[4]))
    with asyncio.Runner(loop_factory=_loop) as runner:
        runner.run(
            _serve(
                plan, socket.socket(fileno=int(sys.argv[2])), counters, int(sys.argv[5]), SharedLook(int(sys.argv[6]))
            )
        )
    return 0


def _loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


async def _serve(
    plan: FrontEndPlan, listening: socket.socket, counters: Counters, accepts: int, look: SharedLook
) -> None:
    source = JoinedPool(Path(plan.run_dir), f"atomr-mp serve {counters.slot}")
    tokens = Tokens(plan.tokens, None if plan.token_file is None else Path(plan.token_file))
    application = Application(
        source, Access(tokens, plan.allowed_hosts), limits=plan.limits, counters=counters, look=look, debug=plan.debug
    )
    server = Server(_config(plan, application, counters), application, plan.drain_delay_s, accepts)
    joining = asyncio.get_running_loop().create_task(source.keep_joined())
    try:
        # Other front ends accept meanwhile; without a pool this one accepts too, and reports that.
        await source.wait_joined(JOIN_S)
        await server.serve(sockets=[listening])
    finally:
        joining.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await joining


def _config(plan: FrontEndPlan, application: Application, counters: Counters) -> uvicorn.Config:
    protocol = type(
        "PlannedConnection",
        (HttpConnection,),
        {"limits": plan.limits, "counters": counters, "own_user_only": plan.own_user_only},
    )
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # not a line for each client that does not speak HTTP
    return uvicorn.Config(
        application,
        http=protocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        proxy_headers=False,  # nothing here depends on the client's claims about itself
        server_header=False,
        log_config=None,
        access_log=plan.access_log,
        backlog=BACKLOG,
        timeout_keep_alive=int(plan.limits.idle_s),
        timeout_graceful_shutdown=int(plan.drain_timeout_s),
        ssl_certfile=plan.tls_certificate,
        ssl_keyfile=plan.tls_key,
    )


class Server(uvicorn.Server):
    """uvicorn's server, which ends in our order.

    Args:
        config: uvicorn's.
        application: The application, which is told of the end.
        drain_delay_s: How long it still accepts once it is not ready, so that balancers notice.
        accepts: A pipe to the parent; a byte in it means that this process accepts.
    """

    def __init__(self, config: uvicorn.Config, application: Application, drain_delay_s: float, accepts: int) -> None:
        super().__init__(config)
        self._accepts: Final = accepts
        self._application: Final = application
        self._drain_delay_s: Final = drain_delay_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept, and tell the parent."""
        await super().startup(sockets)
        with contextlib.suppress(OSError):
            os.write(self._accepts, b".")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End in order by SIGTERM; the parent handles Ctrl-C, and then sends SIGTERM."""
        loop = asyncio.get_running_loop()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        loop.add_signal_handler(signal.SIGTERM, self._drain)
        yield

    def _drain(self) -> None:
        if not self._application.health.draining:
            self._application.drain()
            asyncio.get_running_loop().call_later(self._drain_delay_s, self._end)

    def _end(self) -> None:
        self._application.end_streams()
        self.should_exit = True


if __name__ == "__main__":
    sys.exit(main())

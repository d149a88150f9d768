"""A front end that answers inferences from its own process: all that serving costs, without the call of the pool.

    python -m scripts.benchmarks.processes.own_front_end RUN_DIR PORT GRPC_PORT

It joins the pool, whose methods are its models, and runs `add_sub` itself.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any, Final

import uvloop

from atomr_mp.serve import pool_calls
from atomr_mp.serve.application import Application
from atomr_mp.serve.front_end.server import HttpServer
from atomr_mp.serve.http.access import Access, Tokens
from atomr_mp.serve.oip.grpc.frame import Grounds
from atomr_mp.serve.oip.grpc.server import GrpcServer
from atomr_mp.serve.oip.grpc.service import GrpcService
from atomr_mp.serve.source import JoinedPool

HOST: Final = "127.0.0.1"


class OwnReply:
    """The answer to a call, which is there at once."""

    is_over = True
    device = 0
    generation = 1
    ran_at: tuple[Any, ...] = ()
    ran_ns = 0
    batch_rows = 0

    def __init__(self, values: dict[str, Any]) -> None:
        self._values: Final = values

    def result(self) -> dict[str, Any]:
        """Add and subtract."""
        return {"total": self._values["a"] + self._values["b"], "difference": self._values["a"] - self._values["b"]}


class OwnTarget:
    """Stands for the pool's method."""

    def __init__(self, *_of: object) -> None:
        pass

    def call(self, _args: tuple[Any, ...], kwargs: dict[str, Any], **_options: Any) -> OwnReply:
        """Return the answer."""
        return OwnReply(kwargs)


async def serve(run_dir: Path, port: int, grpc_port: int) -> None:
    """Serve until the process is killed."""
    source = JoinedPool(run_dir, "benchmark")
    application = Application(source, Access(Tokens([], None), None), forwards_traces=True)
    joining = asyncio.create_task(source.keep_joined())
    await source.wait_joined(60.0)
    application.begin()
    counters, budget, limits = application.counters, application.budget, application.limits
    access, accounts, streams = application.access, application.accounts, application.streams
    grounds = Grounds(application.inference, access, accounts, counters, streams, budget, limits, application.unread)
    await GrpcServer(GrpcService(grounds), limits).start(f"{HOST}:{grpc_port}", "", None)
    await HttpServer(application, limits, counters, application.unread).start(socket.create_server((HOST, port)))
    print("ready", flush=True)
    await joining


def main() -> None:
    """Serve until it is killed."""
    setattr(pool_calls, "CallTarget", OwnTarget)  # noqa: B010 - mypy knows it for another module's
    uvloop.run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))


if __name__ == "__main__":
    main()

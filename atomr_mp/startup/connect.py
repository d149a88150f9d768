"""Joining a pool that runs already: on this machine by its run directory, on another one by its relay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from atomr_mp import errors
from atomr_mp.client.callers import can_await
from atomr_mp.client.client import MAX_WAITING, Client
from atomr_mp.output import hold_standard
from atomr_mp.pool import Pool
from atomr_mp.process.files.rundir import RunDirectory, find_run_dir
from atomr_mp.process.shortage import needs_descriptors
from atomr_mp.protocol.hosts import is_loopback
from atomr_mp.protocol.keywords import checked_names
from atomr_mp.startup.patched import check_not_patched
from atomr_mp.transport.session import SessionConnection

if TYPE_CHECKING:
    from atomr_mp.remote.keys import ClientKeys

TCP: Final = "tcp://"
"""Begins the address of a pool on another machine."""


@checked_names
def connect(
    pool: str | None = None,
    *,
    run_dir: str | Path | None = None,
    name: str | None = None,
    max_replays: int | None = None,
    weight: float = 1.0,
    max_waiting: int = MAX_WAITING,
    keys: str | Path | None = None,
    insecure: bool = False,
) -> Pool:
    """Join a pool that runs already, on its own or as another application's, on this machine or on another one.

    In a coroutine use `async with`, or `await` it, as with `start`. Close it: a pool that is dropped unclosed keeps its
    session, and the memory of that, until this process ends.

    Args:
        pool: Name of the pool; by default that of ATOMR_MP_POOL, or "default". Or "tcp://HOST:PORT", where a pool
            admits remote clients (`listen`); see docs/remote.md.
        run_dir: Its run directory, if it is not the default for its name; by default that of ATOMR_MP_RUN_DIR, if that
            is set and no name is given.
        name: What this client is called in logs and `status`.
        max_replays: How often a call of this client is sent again by itself that ran when its worker ended, if its
            method is idempotent; 0 for never, nor if it only waited there; None for the pool's setting.
        weight: How much of a device's time this client gets while others have requests waiting there too: one of
            weight 2 twice as much as one of weight 1. From 0.01 to the pool's `max_weight`. Of a remote client the
            operator decides that, by its key.
        max_waiting: How many calls may wait for room in each event loop, and in all threads together; see `Pool.call`.
            Their arguments may take as many bytes as the pool's `window_bytes`.
        keys: Of a remote client: its key file, as `atomr-mp keys new NAME` writes it.
        insecure: Of a remote client: connect without encryption, to a loopback address.

    Raises:
        InvalidRequest: `weight` or `max_waiting` is out of range.
        PoolUnreachable: No pool runs there.
        NotAuthorized: It belongs to another user, or does not admit the key.
        ConfigurationError: `keys` cannot be used, or there have to be some. Or no file descriptor is left for it.
    """

    def asked() -> Pool:
        check_not_patched()
        hold_standard()
        if pool is not None and pool.startswith(TCP):
            if run_dir is not None:
                raise errors.ConfigurationError("a pool by tcp:// has no run directory here")
            if weight != 1.0:
                raise errors.InvalidRequest(
                    "a remote client's weight is its key's; `atomr-mp keys admit --weight` sets it"
                )
            pair = _key_pair(pool, keys, insecure=insecure)
            from atomr_mp.tunnel.client import CarriedClient  # libzmq is loaded here, and nowhere before

            client = CarriedClient(pool, pair, name, max_replays, max_waiting)
            return Pool(client, operator=client.operator)
        if keys is not None or insecure:
            raise errors.ConfigurationError("keys and insecure are for pools by tcp://HOST:PORT")
        directory = RunDirectory.open(find_run_dir(pool, run_dir))
        session = SessionConnection.connect(directory.session_socket)
        return Pool(Client(session, name, max_replays, weight, max_waiting), directory.path)

    def joined() -> Pool:
        with needs_descriptors("join a pool"):
            return asked()

    if not can_await():
        return joined()
    from atomr_mp.startup.pool_to_enter import PoolToEnter  # late: it takes asyncio

    return PoolToEnter(lambda: (joined(), None))


def _key_pair(endpoint: str, keys: str | Path | None, *, insecure: bool) -> ClientKeys | None:
    """Return a remote client's keys; None where it needs none."""
    if (keys is None) is not insecure:
        raise errors.ConfigurationError(
            f"{endpoint}: give the client's key file (keys=), or, for a loopback address, insecure=True, and not both"
        )
    if keys is None:
        check_loopback(endpoint)
        return None
    from atomr_mp.remote.keys import read_client

    return read_client(Path(keys))


def check_loopback(endpoint: str) -> None:
    """Check that an endpoint is on this machine.

    Raises:
        ConfigurationError: It is not, or is no endpoint.
    """
    if not is_loopback(endpoint.removeprefix(TCP).rpartition(":")[0]):
        raise errors.ConfigurationError(f"{endpoint}: without keys only a loopback address can be connected to")

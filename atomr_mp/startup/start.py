"""`start`: from settings to a pool that is ready.

The supervisor's process is started first; this one does its imports while that comes up.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from atomr_mp.client.callers import can_await
from atomr_mp.process.shortage import needs_descriptors
from atomr_mp.protocol.keywords import checked_names
from atomr_mp.startup.launch import launch
from atomr_mp.startup.patched import check_not_patched
from atomr_mp.startup.targets import Actors, check_no_actor_loads, targets

if TYPE_CHECKING:
    from atomr_mp.pool import Pool
    from atomr_mp.supervision.settings import Backend
    from atomr_mp.supervisor.plan import Plan

START_MARGIN_S: Final = 30.0
"""Time beyond the workers' own start timeout: for the supervisor's start, and a wait for survivors of a former one."""


@checked_names
def start(
    *,
    actors: Actors = (),
    gpus: str | int | None = None,
    backend: Backend | None = None,
    worlds: Mapping[str, Any] | None = None,
    pool: str | None = None,
    run_dir: str | Path | None = None,
    config: str | Path | None = None,
    weight: float = 1.0,
    max_waiting: int | None = None,
    **settings: Any,
) -> Pool:
    """Start a pool for as long as this application lives, and wait until all its devices are ready.

    The supervisor is a process of its own. When this process ends, however it ends, so does the pool.

    In a coroutine use `async with atomr_mp.start(...) as pool:`, or `pool = await atomr_mp.start(...)`: it starts in a
    thread then, and the event loop goes on. Without either the pool starts at its first use, which blocks the loop.

    Args:
        actors: The actors that every device runs: classes, or "package.module:Class" or "path/to/file.py:Class", or
            "NAME=" and one of these; several, or one by itself. `on_devices` names the devices of one that not all run.
            Workers import the module of a class, so a program that defines one starts its pool under
            `if __name__ == "__main__":`.
        gpus: "all" (the default), a number of devices, or GPUs by index or UUID as "0,2"; CUDA_VISIBLE_DEVICES holds.
        backend: "cuda", "host", or "auto" (the default): host if the machine has no NVIDIA hardware at all.
        worlds: Actors that run on several devices as one, by the name of their world:
            `{"tp": {"devices": [0, 1], "actors": ["Mlp"]}}`, see `Pool.world`. The first device has rank 0.
        pool: Name of the pool; by default one of its own, so that an application can have several.
        run_dir: Directory for sockets and logs; by default one named after the pool.
        config: TOML file with settings; arguments of this call and environment variables ATOMR_MP_NAME override it.
        weight: How much this application gets of a busy device's time, beside other clients; see `connect`.
        max_waiting: How many of this application's calls may wait for room; see `connect`.
        **settings: Any other field of `supervision.settings.PoolSettings`.

    Raises:
        InvalidRequest: `weight` or `max_waiting` is out of range.
        ConfigurationError: The pool cannot be started here as asked, or workers could not import a class.
        ActorLoadFailed: An actor cannot be imported.
        SetupFailed: An actor's `setup` fails, even after the allowed restarts.
        PoolBusy: The run directory is in use.
    """
    settings |= {"gpus": gpus, "backend": backend, "worlds": worlds, "pool": pool, "run_dir": run_dir}
    asked = functools.partial(begin, actors, config, weight, max_waiting, **settings)
    if can_await():
        from atomr_mp.startup.pool_to_enter import PoolToEnter

        return PoolToEnter(asked)
    started, limit_s = asked()
    try:
        started.wait_ready(limit_s)
    except BaseException:
        started.close()
        raise
    return started


def begin(
    actors: Actors = (),
    config: str | Path | None = None,
    weight: float = 1.0,
    max_waiting: int | None = None,
    *,
    stderr: int | None = None,
    **settings: Any,
) -> tuple[Pool, float]:
    """Start a pool as `start` does, and do not wait for its devices.

    Args:
        actors: The actors, as for `start`.
        config: A TOML file with settings.
        weight: How much this application gets of a busy device's time.
        max_waiting: How many of its calls may wait for room.
        stderr: Descriptor that the supervisor has as its standard error; by default this process's.
        **settings: All others, as `start` takes them; None means not given.

    Returns:
        The pool, and how many seconds its devices may take to be ready.

    Raises:
        InvalidRequest: `weight` or `max_waiting` is out of range.
        ConfigurationError: The pool cannot be started here as asked, or workers could not import a class.
        PoolBusy: The run directory is in use.
    """
    check_not_patched()
    check_no_actor_loads()
    given = {name: _plain(value) for name, value in settings.items() if value is not None}
    given |= {name: str(given[name]) for name in ("gpus", "run_dir") if name in given}
    given["actors"] = targets(actors) or None
    if "worlds" in given:
        from atomr_mp.startup.world_settings import plain_worlds

        given["worlds"] = plain_worlds(given["worlds"])
    named = bool(config or {"ATOMR_MP_POOL", "ATOMR_MP_RUN_DIR"} & os.environ.keys())
    temporary = not (named or {"pool", "run_dir"} & given.keys())
    if not given.get("pool"):
        given["pool"] = None if named else f"app-{os.getpid()}-{os.urandom(3).hex()}"
    with needs_descriptors("start a pool"):
        process, connection, plan = launch(
            lambda: _plan(Path(config) if config is not None else None, given, weight, temporary=temporary),
            bound=True,
            stderr=stderr,
        )
    try:
        from atomr_mp.client.client import MAX_WAITING, Client
        from atomr_mp.operator.owned_supervisor import OwnedSupervisor
        from atomr_mp.pool import Pool

        most = MAX_WAITING if max_waiting is None else max_waiting
        client = Client(connection, weight=weight, max_waiting=most)
        supervisor = OwnedSupervisor(process, plan.run_path, client.close_streams, plan.settings.drain_timeout_s)
        started = Pool(client, plan.run_path, supervisor)
    except BaseException:
        connection.close()
        process.wait()
        raise
    return started, plan.settings.start_timeout_s + START_MARGIN_S


def _plain(value: Any) -> Any:
    """Return a number of NumPy's as one of Python's, and any other value itself."""
    numpy = sys.modules.get("numpy")  # whoever holds its number has imported it
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def _plan(config: Path | None, settings: dict[str, Any], weight: float, *, temporary: bool) -> Plan:
    import msgspec

    from atomr_mp.protocol.messages.session import check_weight
    from atomr_mp.startup.config import gather, with_source
    from atomr_mp.startup.planning import make_plan

    plan = make_plan(gather(config, settings).settings)
    check_weight(weight, plan.settings.max_weight)
    if config is not None:
        plan = with_source(plan, config, settings)
    return msgspec.structs.replace(plan, temporary=True) if temporary else plan

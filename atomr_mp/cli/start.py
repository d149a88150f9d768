"""`atomr-mp start`: a pool in the foreground, or detached."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from atomr_mp import errors, output
from atomr_mp.cli.common import Commands, counted, whole
from atomr_mp.protocol.codec import MAX_DEVICES

if TYPE_CHECKING:
    from atomr_mp.supervisor.plan import Plan

STOP_S: Final = 10.0
"""How long a supervisor may take to end in order after its start has failed."""


def add(commands: Commands) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "start",
        help="start a pool",
        description="Starts a pool: one worker process per device, and the supervisor that keeps them running. Stays "
        "in the foreground until Ctrl-C or `atomr-mp stop`, unless detached.",
    )
    add_settings(parser)
    parser.add_argument(
        "--detach", action="store_true", help="return once all devices are ready; the pool goes on without a terminal"
    )
    parser.set_defaults(run=run)
    return parser


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the options that are settings."""
    parser.add_argument(
        "--gpus",
        metavar="all|N|0,2",
        help="which GPUs: all, how many, or which by index or UUID (`1,` is the one of index 1); on the host backend a "
        "number of processes (default: all, which there is half the cores, at least 2)",
    )
    parser.add_argument(
        "--workers-per-gpu",
        type=whole(1, MAX_DEVICES),
        metavar="N",
        help="devices of each GPU, each with a worker of its own (default: 1)",
    )
    parser.add_argument(
        "--backend",
        choices=("auto", "cuda", "host"),
        help="auto (the default) takes the host backend if there is no NVIDIA hardware",
    )
    parser.add_argument(
        "--actor",
        action="append",
        metavar="TARGET",
        help="an actor to run: package.module:Class or path/to/file.py:Class, optionally NAME= in front, and behind it "
        "@0+1 for the devices that have it; may be given several times",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML file with settings; options and environment variables ATOMR_MP_NAME override it",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other setting; may be given several times",
    )
    parser.add_argument(
        "--standby",
        choices=("hot", "warm", "none"),
        help="standby of each worker: hot, a second process that is set up and takes over at once; warm, a "
        "process that has imported what it needs, to be forked; none (the default), nothing",
    )
    add_world(parser)
    parser.add_argument("--pool", metavar="NAME", help="name of the pool (default: default)")
    parser.add_argument("--run-dir", metavar="DIR", help="directory for sockets and logs, private to you")


def add_world(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the option that makes a world of all actors."""
    parser.add_argument(
        "--world",
        action="append",
        metavar="[NAME=]0,1",
        help="run all actors as one world over these devices, by rank (its name by default: world); for several worlds "
        "give the setting `worlds`",
    )


def given_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings among the options; None for settings that were not given.

    Raises:
        ConfigurationError: `--set` names none, or gives it a value that it cannot have.
    """
    from atomr_mp.startup.config import from_text

    for pair in options.set:
        if "=" not in pair:
            raise errors.ConfigurationError(f"--set {pair} has no value; write --set {pair}=VALUE")
    pairs = [(pair, *pair.partition("=")[::2]) for pair in options.set]
    given = {name.strip(): from_text(f"--set {pair}", name.strip(), text) for pair, name, text in pairs} | {
        name: value
        for name, value in {
            "pool": options.pool,
            "run_dir": options.run_dir,
            "gpus": options.gpus,
            "workers_per_gpu": options.workers_per_gpu,
            "backend": options.backend,
            "actors": options.actor,
            "standby": options.standby,
        }.items()
        if value is not None
    }
    return given | _given_world(options, given) if options.world else given


def _given_world(options: argparse.Namespace, given: dict[str, Any]) -> dict[str, Any]:
    """Return the setting `worlds` for `--world`: its actors are those of all other settings.

    Raises:
        ConfigurationError: It does not say which world is meant.
    """
    from atomr_mp.startup.config import actor_specs, gather
    from atomr_mp.startup.world_settings import world_of_all

    settings = gather(options.config, given).settings
    if settings.worlds:
        raise errors.ConfigurationError(
            f"--world {options.world[0]} is of all actors, and the setting worlds has some already "
            f"({', '.join(settings.worlds)}); give one of both"
        )
    return {"worlds": world_of_all(options.world, [actor.name for actor in actor_specs(settings.actors)])}


def run(options: argparse.Namespace) -> int:
    """Start a pool; in the foreground this process becomes its supervisor."""
    from atomr_mp.process.files.rundir import RunDirectory
    from atomr_mp.startup.config import gather, with_source
    from atomr_mp.startup.launch import become_supervisor
    from atomr_mp.startup.planning import make_plan

    settings = given_settings(options)
    plan = make_plan(gather(options.config, settings).settings)
    if options.config is not None:
        plan = with_source(plan, options.config, settings)
    if options.detach:
        return _detached(plan)
    output.protect()  # this process becomes the supervisor, which waits for no reader of its lines
    # Check before anything is announced; the supervisor checks again itself.
    RunDirectory.create(plan.run_path).close()
    _announce(plan)
    become_supervisor(plan)
    raise AssertionError("exec returned")


def _announce(plan: Plan) -> None:
    """Print what is started and why, in one line, and the notes on its devices below."""
    why = "no NVIDIA hardware found: " if plan.settings.backend == "auto" and plan.backend == "host" else ""
    actors = ", ".join(actor.name for actor in plan.actors) or "none, so nothing can be called; see --actor"
    sys.stderr.write(
        f"{why}starting the {plan.backend} backend with {counted(len(plan.devices), 'device')} (run directory "
        f"{plan.run_dir}; actors: {actors})\n"
    )
    for device in plan.devices:
        for note in device.notes:
            sys.stderr.write(f"{device.title} ({device.name} {device.uuid}): {note}\n")
    sys.stderr.flush()


def _detached(plan: Plan) -> int:
    from atomr_mp.startup.launch import launch
    from atomr_mp.startup.start import START_MARGIN_S

    process, connection, _ = launch(lambda: plan, bound=False)
    try:
        from atomr_mp.client.client import Client
        from atomr_mp.pool import Pool

        with Pool(Client(connection, "atomr-mp start"), plan.run_path) as pool:
            _announce(plan)
            pool.wait_ready(plan.settings.start_timeout_s + START_MARGIN_S)
        sys.stdout.write(
            f"pool {plan.settings.pool} runs: {counted(len(plan.devices), 'device')} ready, supervisor {process.pid}, "
            f"run directory {plan.run_dir}\n"
        )
        sys.stdout.flush()  # here, since a start that cannot say so has failed
    except BaseException:
        _end(process)
        raise
    process.returncode = 0  # it lives on, so nobody should be warned of that
    return 0


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a supervisor whose start has failed, in order if it can."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()  # its workers are killed with it
        process.wait()

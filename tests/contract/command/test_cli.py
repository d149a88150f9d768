from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.cli import main
from atomr_mp.client.client import Client
from atomr_mp.operator.owned_supervisor import OwnedSupervisor
from atomr_mp.pool import Pool
from atomr_mp.process.files.rundir import RunDirectory
from atomr_mp.process.gpus.hardware import nvidia_hardware
from atomr_mp.protocol.codec import VERSION
from atomr_mp.startup.launch import launch
from atomr_mp.startup.planning import make_plan
from atomr_mp.supervision.settings import PoolSettings
from tests.support import ACTORS, DEADLINE_S, Ledger, Watched, running, settled
from tests.waiting import readable

EXAMPLES = Path(__file__).parents[3] / "examples"
DIGITS = f"{EXAMPLES}/digits.py:Digits"
MAPPED = f"{ACTORS}/mapped.py:Mapped"
CLI = (sys.executable, "-m", "atomr_mp.cli")
HOST = ("--backend", "host")
"""What is tested here is the same on a machine with GPUs."""


def cli(*arguments: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*CLI, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False
    )


def refusal(*arguments: str | Path, status: int = 1) -> str:
    """Run a command that is refused; return its one line."""
    done = cli(*arguments)
    assert done.returncode == status, done
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("atomr-mp: ")
    return lines[0].removeprefix("atomr-mp: ")


def read_until(stream: IO[bytes], text: str) -> str:
    """Read a stream until a text has come; return all of it."""
    seen = b""
    while text.encode() not in seen:
        assert readable([stream], DEADLINE_S), f"{text!r} did not come: {seen!r}"
        data = os.read(stream.fileno(), 65536)
        assert data, f"it ended before {text!r}: {seen!r}"
        seen += data
    return seen.decode()


@contextmanager
def detached_pool(ledger: Ledger) -> Iterator[Path]:
    """Start a detached pool of two devices by the command line; give its run directory, and stop it."""
    run_dir = ledger.run_dir()
    started = cli("start", *HOST, "--detach", "--actor", DIGITS, "--actor", MAPPED, "--gpus", "2", "--run-dir", run_dir)
    assert started.returncode == 0, started.stderr
    yield run_dir
    cli("stop", "--run-dir", run_dir)


@pytest.fixture
def detached(ledger: Ledger) -> Iterator[Path]:
    """Give a detached pool of the test's own, by its run directory."""
    with detached_pool(ledger) as run_dir:
        yield run_dir


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    """Give the detached pool of all tests that end none of its processes, by its run directory."""
    with Ledger() as ledger, detached_pool(ledger) as run_dir:
        yield run_dir


def status(run_dir: Path) -> dict[str, Any]:
    """Return what `status --json` says."""
    shown: dict[str, Any] = json.loads(cli("status", "--json", "--run-dir", run_dir).stdout)
    return shown


# --- start and stop ------------------------------------------------------------------------------------------------


def test_detached_pool_outlives_its_start_and_ends_on_stop(ledger: Ledger) -> None:
    """`start --detach` returns when all is ready, `stop` when all has gone; both say so in one line."""
    run_dir = ledger.run_dir()
    started = cli("start", *HOST, "--detach", "--gpus", "1", "--actor", DIGITS, "--run-dir", run_dir)
    assert started.returncode == 0, started.stderr
    found = re.fullmatch(r"pool default runs: 1 device ready, supervisor (\d+), run directory (\S+)\n", started.stdout)
    assert found, started.stdout
    assert found[2] == str(run_dir)
    shown = status(run_dir)
    assert shown["supervisor_pid"] == int(found[1])
    with Watched([int(found[1]), shown["devices"][0]["pid"]]) as watched:
        stopped = cli("stop", "--run-dir", run_dir)
        assert (stopped.returncode, stopped.stdout) == (0, "pool default has stopped\n")
        assert watched.left(0) == []


@pytest.mark.skipif(bool(nvidia_hardware()), reason="the host backend is chosen only where there is no NVIDIA hardware")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_pool_in_the_foreground_says_what_it_starts_and_ends_by_signal(ledger: Ledger, number: int) -> None:
    """Without options the backend is chosen and named; Ctrl-C ends the pool in order, status 0."""
    run_dir = ledger.run_dir()
    process = subprocess.Popen([*CLI, "start", "--gpus", "2", "--run-dir", str(run_dir)], stderr=subprocess.PIPE)
    with running(process):
        assert process.stderr is not None
        told = read_until(process.stderr, "device 1 generation 1: ready")
        if not Path("/dev/nvidiactl").exists():
            first = told.splitlines()[0]
            assert first.startswith(
                f"no NVIDIA hardware found: starting the host backend with 2 devices (run directory {run_dir}"
            )
        process.send_signal(number)
        read_until(process.stderr, "the pool has ended")
        assert process.wait(DEADLINE_S) == 0


def test_interrupted_in_the_foreground_a_pool_says_what_it_waits_for(ledger: Ledger) -> None:
    """It also says how to end it at once, which the second Ctrl-C does."""
    run_dir = ledger.run_dir()
    command = [*CLI, "start", *HOST, "--gpus", "1", "--actor", MAPPED, "--run-dir", str(run_dir)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    with running(process), ledger.gate("gate") as gate:
        assert process.stderr is not None
        read_until(process.stderr, "device 0 generation 1: ready")
        with atomr_mp.connect(run_dir=run_dir) as pool:
            pool.wait_ready()
            reply = pool.call("Mapped.pass_gate", [gate.path, 1])
            gate.wait()
            process.send_signal(signal.SIGINT)
            read_until(process.stderr, "waiting for 1 request, at most 30 s; Ctrl-C again kills")
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == 0
            assert reply.exception() is not None


@pytest.mark.parametrize("how", [["--detach"], []])
def test_second_start_on_a_run_directory_is_refused(shared: Path, how: list[str]) -> None:
    """The refusal names the living supervisor, which goes on."""
    line = refusal("start", *HOST, "--run-dir", shared, *how)
    assert f"(pid {status(shared)['supervisor_pid']}) already holds {shared}" in line
    assert status(shared)["state"] == "healthy"


def test_start_after_a_killed_supervisor_cleans_up(detached: Path) -> None:
    """Status says that the directory is stale; the next start works, with nothing left of the killed pool."""
    before = status(detached)
    pids = [before["supervisor_pid"], *(device["pid"] for device in before["devices"])]
    with Watched(pids) as watched:
        os.kill(before["supervisor_pid"], signal.SIGKILL)
        assert watched.left() == []
    shown = status(detached)
    assert shown["state"] == "down"
    assert f"its supervisor (pid {pids[0]}) was killed" in shown["reason"]
    assert "was killed" in refusal("stop", "--run-dir", detached)
    again = cli("start", *HOST, "--detach", "--gpus", "2", "--run-dir", detached)
    assert again.returncode == 0, again.stderr
    assert status(detached)["state"] == "healthy"


@pytest.mark.parametrize("how", [["--detach"], []])
class TestRefusedStart:
    """A start that cannot work is refused in one line, in the foreground and detached."""

    def test_path_too_long(self, ledger: Ledger, how: list[str]) -> None:
        """The line says by how much."""
        path = ledger.path / ("x" * 100)
        assert "bytes shorter" in refusal("start", *HOST, "--run-dir", path, *how)

    def test_others_may_enter(self, ledger: Ledger, how: list[str]) -> None:
        """The line says what to do."""
        path = ledger.path / "open"
        path.mkdir()
        path.chmod(0o755)
        assert f"chmod 700 {path}" in refusal("start", *HOST, "--run-dir", path, *how)

    def test_no_place_for_it(self, ledger: Ledger, how: list[str]) -> None:
        """A typing error makes no tree of directories."""
        path = ledger.path / "a" / "b" / "c"
        assert f"the run directory {path} cannot be made" in refusal("start", *HOST, "--run-dir", path, *how)
        assert not (ledger.path / "a").exists()

    def test_gpu_indices_on_the_host(self, ledger: Ledger, how: list[str]) -> None:
        """The host backend takes a number."""
        line = refusal("start", *HOST, "--gpus", "0,2", "--run-dir", ledger.run_dir(), *how)
        assert "--gpus 0,2: the host backend takes a number of devices" in line

    def test_no_actor_by_that_name(self, ledger: Ledger, how: list[str]) -> None:
        """A target of another form, and a file that does not exist."""
        assert "does not name an actor" in refusal(
            "start", *HOST, "--actor", "digits", "--run-dir", ledger.run_dir(), *how
        )
        line = refusal("start", *HOST, "--actor", "no/such.py:Actor", "--run-dir", ledger.run_dir(), *how)
        assert "no/such.py does not exist" in line

    def test_unknown_setting(self, ledger: Ledger, how: list[str]) -> None:
        """The configuration's file and field are named."""
        config = ledger.path / "pool.toml"
        config.write_text("gpu = 'all'\n")
        line = refusal("start", *HOST, "--config", config, "--run-dir", ledger.run_dir(), *how)
        assert str(config) in line
        assert "there is no setting 'gpu'; did you mean gpus?" in line

    def test_bad_pool_name(self, ledger: Ledger, how: list[str]) -> None:
        """It would be a path."""
        del ledger
        assert "is no name for a pool" in refusal("start", *HOST, "--pool", "../up", *how)


def test_detached_start_fails_with_the_actors_reason_and_leaves_nothing(ledger: Ledger) -> None:
    """An actor that cannot be imported stops the pool again; the line says why, and names the log."""
    run_dir = ledger.run_dir()
    done = cli("start", *HOST, "--detach", "--actor", f"{ACTORS}/mapped.py:Nobody", "--run-dir", run_dir)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "has no 'Nobody'; its actors are: Mapped" in last
    assert f"{run_dir}/device-0.log" in last
    assert not ledger.processes()


def test_settings_come_from_a_file_and_options_before_it(ledger: Ledger) -> None:
    """A pool as its TOML file says, but for the option that was given."""
    config = ledger.path / "pool.toml"
    config.write_text(f"pool = 'named'\nactors = ['Reader={DIGITS}']\ngpus = '3'\n")
    run_dir = ledger.run_dir()
    assert cli("start", *HOST, "--detach", "--config", config, "--gpus", "1", "--run-dir", run_dir).returncode == 0
    shown = status(run_dir)
    assert (shown["pool"], len(shown["devices"])) == ("named", 1)
    with atomr_mp.connect(run_dir=run_dir) as pool:
        assert "Reader.predict" in pool.methods
    assert cli("stop", "--run-dir", run_dir).stdout == "pool named has stopped\n"


def test_config_shows_where_each_setting_comes_from(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """From an option, environment, file or default; an invalid one is reported in one line, with its source."""
    config = ledger.path / "pool.toml"
    config.write_text("max_requests = 100\n")
    monkeypatch.setenv("ATOMR_MP_MAX_RESTARTS", "5")
    done = cli("config", "--json", "--config", config, "--gpus", "2", "--set", "max_age_s=60")
    assert done.returncode == 0, done.stderr
    assert "ATOMR_MP_TEST is not a setting, and is ignored\n" in done.stderr
    shown = json.loads(done.stdout)
    assert {name: each["from"] for name, each in shown.items() if each["from"] != "default"} == {
        "gpus": "option",
        "max_restarts": "environment",
        "max_requests": str(config),
        "max_age_s": "option",
    }
    table = cli("config", "--show", "--gpus", "2").stdout
    assert re.search(r'^gpus +"2"  \(option\)$', table, re.MULTILINE)
    assert (
        refusal("config", "--set", "max_restarts=many")
        == "--set max_restarts=many is 'many': Expected `int`, got `str`"
    )
    assert (
        refusal("config", "--set", "max_restarts") == "--set max_restarts has no value; write --set max_restarts=VALUE"
    )
    monkeypatch.setenv("ATOMR_MP_MAX_RESTARTS", "-x")
    assert "ATOMR_MP_MAX_RESTARTS is '-x'" in refusal("config", "--show")
    assert "ATOMR_MP_MAX_RESTARTS is '-x'" in refusal("start", *HOST, "--run-dir", ledger.run_dir())


def test_the_environment_says_which_pool_is_meant(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For commands and for `connect`; an option has precedence."""
    monkeypatch.setenv("ATOMR_MP_RUN_DIR", str(shared))
    assert json.loads(cli("status", "--json").stdout)["run_dir"] == str(shared)
    with atomr_mp.connect() as pool:
        assert pool.run_dir == shared
    assert cli("status", "--pool", "another").returncode == 2


# --- status, restart, logs, events ---------------------------------------------------------------------------------


def test_status_tells_a_healthy_pool(shared: Path) -> None:
    """As JSON and as a table; exit status 0."""
    done = cli("status", "--json", "--run-dir", shared)
    assert done.returncode == 0
    shown = json.loads(done.stdout)
    assert (shown["state"], shown["backend"], shown["run_dir"]) == ("healthy", "host", str(shared))
    assert [device["index"] for device in shown["devices"]] == [0, 1]
    for device in shown["devices"]:
        assert device["state"] == "ready"
        assert device["pid"] > 0
        assert (device["generation"], device["restarts"], device["queue_depth"]) == (1, 0, 0)
    table = cli("status", "--run-dir", shared)
    assert table.returncode == 0
    assert "pool default is healthy" in table.stdout
    assert all(str(device["pid"]) in table.stdout for device in shown["devices"])


def test_status_shows_the_devices_that_are_asked_for(shared: Path) -> None:
    """In the pool's order, each once, as JSON and as a table; the option changes nothing else."""
    whole = status(shared)
    for wanted in ([1], [0], [1, 0, 1]):
        asked = [word for device in wanted for word in ("--device", str(device))]
        done = cli("status", "--json", *asked, "--run-dir", shared)
        assert done.returncode == 0, done.stderr
        shown = json.loads(done.stdout)
        assert [device["index"] for device in shown["devices"]] == sorted(set(wanted))
        assert shown.keys() == whole.keys()
        assert (shown["state"], shown["supervisor_pid"]) == ("healthy", whole["supervisor_pid"])
        table = cli("status", *asked, "--run-dir", shared)
        assert table.returncode == 0, table.stderr
        assert "pool default is healthy" in table.stdout
        rows = re.findall(r"^ *(\d+) .* ready ", table.stdout, re.MULTILINE)
        assert rows == [str(device) for device in sorted(set(wanted))], table.stdout


@pytest.mark.parametrize("how", [[], ["--json"]])
def test_status_of_a_device_that_does_not_exist_is_wrong_usage(shared: Path, how: list[str]) -> None:
    """One line says which devices there are, and nothing is shown, also of those that exist."""
    for absent in ("2", "5000"):
        line = refusal("status", *how, "--device", "0", "--device", absent, "--run-dir", shared, status=2)
        assert line == f"there is no device {absent}; this pool has devices 0 and 1"


def test_status_tells_a_degraded_pool_and_restart_repairs_it(ledger: Ledger) -> None:
    """A device that is stopped makes the status 1, with the reason; `restart` gets it going, under a new generation."""
    config = ledger.path / "pool.toml"
    config.write_text("max_restarts = 0\ngive_up = true\ngpus = '2'\n")
    run_dir = ledger.run_dir()
    cli("start", *HOST, "--detach", "--config", config, "--actor", DIGITS, "--run-dir", run_dir)
    with atomr_mp.connect(run_dir=run_dir) as pool:
        os.kill(pool.devices[1].pid, signal.SIGKILL)
        assert pool._client.wait_until(lambda: pool.devices[1].state.value == "stopped", DEADLINE_S)
        with pytest.raises(errors.DeviceUnavailable, match="device 1 is stopped and has no process") as caught:
            os.kill(pool.devices[1].pid, signal.SIGKILL)
        assert caught.value.device == 1
        assert pool.status().devices[1].pid is None
    done = cli("status", "--run-dir", run_dir)
    assert done.returncode == 1
    assert "is degraded" in done.stdout
    assert "device 1 is stopped: " in done.stdout
    assert "killed by SIGKILL" in " ".join(done.stdout.split())
    as_json = cli("status", "--json", "--run-dir", run_dir)
    assert as_json.returncode == 1
    assert [device["pid"] is None for device in json.loads(as_json.stdout)["devices"]] == [False, True]
    well = cli("status", "--device", "0", "--run-dir", run_dir)
    assert well.returncode == 1  # of the pool, whichever devices are shown
    assert "is degraded" in well.stdout
    assert "device 1" not in well.stdout

    restarted = cli("restart", "1", "--run-dir", run_dir)
    assert restarted.returncode == 0, restarted.stderr
    assert re.match(r"device 1 is ready: generation 2, pid \d+, after \d+ ms\n", restarted.stdout)
    assert cli("status", "--run-dir", run_dir).returncode == 0
    cli("stop", "--run-dir", run_dir)


def test_restart_replaces_a_worker(detached: Path) -> None:
    """The new one has the next generation, and it does not count as a loss; another device is refused."""
    before = status(detached)["devices"][0]
    done = cli("restart", "0", "--run-dir", detached)
    assert done.returncode == 0, done.stderr
    after = status(detached)["devices"][0]
    assert after["generation"] == 2
    assert after["pid"] != before["pid"]
    assert after["restarts"] == 0
    assert "there is no device 7; this pool has 2" in refusal("restart", "7", "--run-dir", detached)


def test_ready_has_every_device_answer(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    """A stuck device does not answer; `--any` needs only one device."""
    with ledger.start(gpus=2) as pool, ledger.gate("gate") as gate:
        run_dir = pool.run_dir
        done = cli("ready", "--deadline", str(DEADLINE_S), "--run-dir", run_dir)
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"2 of 2 devices answered within \d+ ms\n", done.stdout)
        held = pool.call("Probe.hold", gate.path, device=1)
        gate.wait()
        # In this process: another one takes seconds to import what it needs, on a busy machine.
        assert main(["ready", "--deadline", "6", "--run-dir", str(run_dir)]) == 1
        told = capsys.readouterr().err
        assert "device 1 does not answer: " in told
        assert told.endswith("atomr-mp: 1 of 2 devices answered\n")
        assert main(["ready", "--any", "--deadline", "6", "--run-dir", str(run_dir)]) == 0
        assert capsys.readouterr().out.startswith("1 of 2")
        gate.open()
        assert held.result() == 1


def test_reload_replaces_every_worker(detached: Path) -> None:
    """One line says that all are; it does not count as a loss."""
    done = cli("reload", "--run-dir", detached)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"2 devices reloaded, after \d+\.\d s\n", done.stdout)
    assert [(device["generation"], device["restarts"]) for device in status(detached)["devices"]] == [(2, 0), (2, 0)]


def test_status_of_no_pool_is_down(ledger: Ledger) -> None:
    """Exit status 2, and JSON all the same."""
    run_dir = ledger.run_dir("nothing")
    done = cli("status", "--json", "--run-dir", run_dir)
    assert done.returncode == 2
    shown = json.loads(done.stdout)
    assert (shown["pool"], shown["state"], shown["devices"]) == (str(run_dir), "down", [])
    assert f"there is no pool at {run_dir}" in shown["reason"]
    assert cli("status", "--run-dir", run_dir).returncode == 2
    asked = cli("status", "--json", "--device", "7", "--run-dir", run_dir)
    assert asked.returncode == 2
    assert json.loads(asked.stdout) == shown


@pytest.mark.parametrize("command", [["stop"], ["restart", "0"], ["reload"], ["ready"], ["logs"], ["events"]])
def test_unknown_pool_is_refused(command: list[str], monkeypatch: pytest.MonkeyPatch, ledger: Ledger) -> None:
    """The line says where it was looked for."""
    monkeypatch.setenv("TMPDIR", str(ledger.path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert f"{ledger.path}/atomr-mp-{os.geteuid()}/nobody" in refusal(*command, "--pool", "nobody")


def test_logs_are_shown_and_followed(detached: Path) -> None:
    """Of one device, of the supervisor, of all; with following, even across a restart."""
    assert cli("logs", "0", "--run-dir", detached).stdout == "--- device 0 generation 1\n"
    assert "device 1 generation 1: ready" in cli("logs", "supervisor", "--run-dir", detached).stdout
    every = cli("logs", "--lines", "1", "--run-dir", detached).stdout.splitlines()
    assert [line.partition(":")[0] for line in every] == ["device-0", "device-1", "supervisor", "zygote"]
    assert "there is no log of 9" in refusal("logs", "9", "--run-dir", detached)
    following = subprocess.Popen([*CLI, "logs", "0", "-f", "--run-dir", str(detached)], stdout=subprocess.PIPE)
    with running(following):
        assert following.stdout is not None
        read_until(following.stdout, "generation 1")
        cli("restart", "0", "--run-dir", detached)
        read_until(following.stdout, "generation 2")
        following.send_signal(signal.SIGINT)
        assert following.wait(DEADLINE_S) == 130


def test_events_tell_the_pools_story(detached: Path) -> None:
    """Even after its end, with times; as JSON, one object a line."""
    cli("stop", "--run-dir", detached)
    told = cli("events", "--run-dir", detached).stdout
    assert "pool default starts with 2 host devices" in told
    assert told.splitlines()[-1].endswith("the pool has ended")
    events = [json.loads(line) for line in cli("events", "--json", "--run-dir", detached).stdout.splitlines()]
    assert [event["event"] for event in events if event.get("device") == 0][:2] == ["start", "ready"]
    assert len(cli("events", "--lines", "2", "--run-dir", detached).stdout.splitlines()) == 2


def test_events_are_followed_and_read_as_a_story(detached: Path) -> None:
    """How a worker died, when the next one was ready, and for how long the device took no calls."""
    following = subprocess.Popen([*CLI, "events", "-f", "--run-dir", str(detached)], stdout=subprocess.PIPE)
    with running(following):
        assert following.stdout is not None
        read_until(following.stdout, "device 1 generation 1: ready after")
        os.kill(status(detached)["devices"][1]["pid"], signal.SIGKILL)
        told = read_until(following.stdout, "device 1 generation 2: ready after")
        assert "device 1 generation 1: ended: killed by SIGKILL (signal 9), no requests were running\n" in told
        assert re.search(r"generation 2: ready after \d+ ms; the device took no calls for \d+ ms\n", told + "\n"), told
        following.send_signal(signal.SIGINT)
        assert following.wait(DEADLINE_S) == 130


SEEING: Final = """
import os, subprocess
from atomr_mp_workers import Actor, method

class Seeing(Actor):
    @method
    def seen(self, name: str) -> list[str]:
        return [os.environ[name], subprocess.check_output(["printenv", name], text=True).strip()]
"""
"""Tells a variable of the environment, as Python has it and as C has it."""


def test_a_device_has_what_its_plan_says(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its UUID, for clients too; notes for the operator; and an environment that has precedence over the user's own."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    much = ["m" * 2**20]  # more than the kernel keeps of it; imported by nobody without standbys
    (ledger.path / "seeing.py").write_text(SEEING)
    actors = [f"{ledger.path}/seeing.py:Seeing"]
    plan = make_plan(PoolSettings(backend="host", gpus="1", run_dir=str(ledger.run_dir()), actors=actors, preload=much))
    (device,) = plan.devices
    seen = {"CUDA_VISIBLE_DEVICES": "GPU-aa11,GPU-bb22"}
    device = msgspec.structs.replace(device, uuid="GPU-aa11", notes=["[others] use it"], environment=seen)
    process, connection, _ = launch(lambda: msgspec.structs.replace(plan, devices=[device]), bound=True)
    client = Client(connection)
    with Pool(client, plan.run_path, OwnedSupervisor(process, plan.run_path, client.close_streams)) as pool:
        pool.wait_ready()
        (shown,) = status(plan.run_path)["devices"]
        assert (shown["uuid"], shown["notes"]) == ("GPU-aa11", ["[others] use it"])
        assert pool.device(0).uuid == "GPU-aa11"
        assert "device 0: [others] use it\n" in cli("status", "--run-dir", plan.run_path).stdout
        assert pool.call("Seeing.seen", "CUDA_VISIBLE_DEVICES").result() == ["GPU-aa11,GPU-bb22"] * 2


def test_a_start_that_is_refused_leaves_nothing_behind(ledger: Ledger) -> None:
    """Neither a process nor a descriptor, although the supervisor's process starts before the settings are read."""
    with pytest.raises(errors.ConfigurationError, match="a number of devices"):
        atomr_mp.start(backend="host", gpus="none", run_dir=ledger.run_dir())
    with pytest.raises(errors.InvalidRequest, match="weight"):
        atomr_mp.start(backend="host", weight=1e9, run_dir=ledger.run_dir())


def test_version_says_what_runs_here() -> None:
    """Versions and backends."""
    done = cli("version")
    assert done.returncode == 0
    assert done.stdout.startswith("atomr-mp ")
    assert f"protocol {VERSION}\n" in done.stdout
    assert "host backend: available" in done.stdout


@pytest.mark.parametrize(
    "arguments", [[], ["fly"], ["restart"], ["map", "A.b"], ["restart", "one"], ["status", "--device", "one"]]
)
def test_wrong_usage_has_status_2(arguments: list[str]) -> None:
    """With the usage on stderr."""
    done = cli(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: atomr-mp")


def test_reader_that_goes_away_is_no_error_of_ours(shared: Path) -> None:
    """As with `| head`: no traceback."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*CLI, "status", "--run-dir", str(shared)],
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=DEADLINE_S,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


# --- map -----------------------------------------------------------------------------------------------------------


def test_map_of_rows_gives_rows(shared: Path, ledger: Ledger) -> None:
    """The images in a .npy file become the digits in another, in order; nothing else is left beside it."""
    output = ledger.path / "out" / "digits.npy"
    output.parent.mkdir()
    done = cli(
        "map", "Digits.predict", "--input", EXAMPLES / "data/digits_all.npy", "--output", output, "--run-dir", shared
    )
    assert done.returncode == 0, done.stderr
    digits = np.load(output)
    labels = np.load(EXAMPLES / "data/digits_all_labels.npy")
    assert digits.shape == labels.shape
    assert digits.dtype == np.int64
    assert np.mean(digits == labels) > 0.97
    assert list(output.parent.iterdir()) == [output]
    assert "1,797 items in" in done.stderr
    assert "0 failed" in done.stderr


def test_map_of_lines_gives_lines_with_failures_in_their_place(ledger: Ledger) -> None:
    """With a pool of its own; a JSON value is one argument, whatever it is; a failed item's line says why."""
    items = [0, "text", [1, 2], {"a": None}, 3, None, 5.5]
    source, output = ledger.path / "in.jsonl", ledger.path / "out.jsonl"
    source.write_text("".join(f"{json.dumps(item)}\n" for item in items))
    done = cli(
        *("map", "Mapped.refuse_3", "--input", source, "--output", output),
        *("--actor", MAPPED, "--gpus", "1", *HOST, "--run-dir", ledger.run_dir()),
    )
    assert done.returncode == 1, done.stderr
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    failed = lines.pop(4)
    items.remove(3)
    assert lines == items
    assert failed["error"]["code"] == "actor_failed"
    assert "not this one" in failed["error"]["message"]
    assert "atomr-mp: line 5 failed: actor_failed: " in done.stderr
    assert "1 failed" in done.stderr


def test_map_survives_a_kill_in_the_middle(detached: Path, ledger: Ledger) -> None:
    """A worker is killed while items are on it: all results come, in order, and the summary tells."""
    output = ledger.path / "out.jsonl"
    gate = ledger.gate("gate")
    with gate:
        process = subprocess.Popen(
            [*CLI, "map", "Mapped.pass_gate", "--input", "-", "--output", str(output), "--run-dir", str(detached)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stderr is not None
        with running(process):
            for item in range(2000):
                process.stdin.write(f"{json.dumps([gate.path if item == 1000 else '', item])}\n")
            process.stdin.close()
            (pid,) = gate.wait()
            os.kill(pid, signal.SIGKILL)
            gate.wait()
            gate.open(2)
            told = process.stderr.read()
            assert process.wait(DEADLINE_S) == 0, told
    assert [json.loads(line) for line in output.read_text().splitlines()] == list(range(2000))
    assert "1 worker restart," in told
    assert "0 failed" in told


def test_rows_of_failed_items_are_marked(shared: Path, ledger: Ledger) -> None:
    """NaN in the .npy file, and a line in the file of failures; even the first rows may be marked."""
    source, output = ledger.path / "in.npy", ledger.path / "out.npy"
    np.save(source, np.array([-1.0, 4.0, 9.0, -1.0]))
    done = cli("map", "Mapped.root", "--input", source, "--output", output, "--run-dir", shared)
    assert done.returncode == 1, done.stderr
    np.testing.assert_array_equal(np.load(output), [np.nan, 2.0, 3.0, np.nan])
    failures = [json.loads(line) for line in Path(f"{output}.failures.jsonl").read_text().splitlines()]
    assert [failure["index"] for failure in failures] == [0, 3]
    assert all(failure["error"]["code"] == "actor_failed" for failure in failures)
    np.save(source, np.array([4.0]))
    assert cli("map", "Mapped.root", "--input", source, "--output", output, "--run-dir", shared).returncode == 0
    assert "atomr-mp: row 3 failed: " in done.stderr
    assert not Path(f"{output}.failures.jsonl").exists(), "an earlier job's failures are not this one's"


def test_results_that_are_not_alike_are_failures_of_their_items(shared: Path, ledger: Ledger) -> None:
    """A .npy file takes the form of its first row; rows of another form are reported, not converted."""
    source, output = ledger.path / "in.jsonl", ledger.path / "out.npy"
    source.write_text('[1,2]\n[1,2,3]\n"a"\n[3,4]\n')
    done = cli("map", "Mapped.refuse_3", "--input", source, "--output", output, "--run-dir", shared)
    assert done.returncode == 1
    np.testing.assert_array_equal(np.load(output), [[1, 2], [0, 0], [0, 0], [3, 4]])
    assert "line 2 failed: unsupported: its result is int64 of shape (3,)" in done.stderr
    assert "line 3 failed: unsupported: its result is no number" in done.stderr


def test_a_program_and_the_command_tell_a_pool_s_status_in_the_same_words(shared: Path) -> None:
    """`Pool.status` has the fields of `status --json`, which are those of the schema."""
    done = cli("status", "--json", "--run-dir", shared)
    shown = json.loads(done.stdout)
    schema = json.loads((Path(__file__).parents[3] / "docs" / "status-schema.json").read_text(encoding="utf-8"))
    jsonschema = pytest.importorskip("jsonschema")  # not on the GPUs' machines
    jsonschema.Draft202012Validator(schema).validate(shown)
    with atomr_mp.connect(run_dir=shared) as pool:
        told = msgspec.to_builtins(pool.status())
    assert told.keys() == shown.keys()
    assert [device.keys() for device in told["devices"]] == [device.keys() for device in shown["devices"]]
    for name in ("pool", "state", "backend", "version", "run_dir", "supervisor_pid"):
        assert told[name] == shown[name]
    assert [device["pid"] for device in told["devices"]] == [device["pid"] for device in shown["devices"]]


def test_a_finished_map_needs_no_pool(ledger: Ledger, shared: Path) -> None:
    """The same command gives the same output from the journal; more items, or a retry, are for a pool again."""
    source, output, journal = (ledger.path / name for name in ("in.jsonl", "out.jsonl", "journal"))
    source.write_text("1\n3\n5\n")
    command = ("map", "Mapped.refuse_3", "--input", source, "--output", output, "--journal", journal)
    first = cli(*command, "--run-dir", shared)
    assert first.returncode == 1, first.stderr
    results = output.read_bytes()
    output.unlink()
    nowhere = ("--run-dir", ledger.path / "none")
    again = cli(*command, *nowhere)
    assert again.returncode == 1, again.stderr
    assert output.read_bytes() == results
    assert "3 items, 3 of them by the journal" in again.stderr
    assert "line 2 failed: actor_failed" in again.stderr
    assert "no pool" in refusal(*command, *nowhere, "--retry-failed", status=2)
    source.write_text("1\n3\n5\n7\n")
    assert "no pool" in refusal(*command, *nowhere, status=2)
    source.write_text("1\n3\n6\n")
    assert "item 2, counted from 0, is another" in refusal(*command, *nowhere, status=2)


def test_map_from_stdin_to_stdout(shared: Path) -> None:
    """Results alone on stdout; the rest on stderr; arrays as lists."""
    done = cli("map", "Mapped.square", "--input", "-", "--output", "-", "--run-dir", shared, stdin="1\n2\n3\n")
    assert (done.returncode, done.stdout) == (0, "1\n4\n9\n")
    assert "3 items" in done.stderr


def test_only_some_failures_are_told_and_all_are_counted(shared: Path, ledger: Ledger) -> None:
    """Ten lines, then how many more."""
    source = ledger.path / "in.jsonl"
    source.write_text("3\n" * 25)
    done = cli("map", "Mapped.refuse_3", "--input", source, "--output", ledger.path / "o.jsonl", "--run-dir", shared)
    assert done.returncode == 1
    assert done.stderr.count("failed: actor_failed") == 10
    assert "15 more items failed" in done.stderr
    assert "25 failed" in done.stderr


class TestJobThatCannotRun:
    """Exit status 2, one line, and no output."""

    def test_pool_is_unknown(self, ledger: Ledger) -> None:
        """None runs there."""
        run_dir = ledger.run_dir("nothing")
        line = self.refused(ledger, "Digits.predict", "--run-dir", run_dir)
        assert f"there is no pool at {run_dir}" in line

    def test_method_is_unknown(self, ledger: Ledger, shared: Path) -> None:
        """The methods that there are are named."""
        line = self.refused(ledger, "Digits.read", "--run-dir", shared)
        assert "there is no request 'Digits.read'" in line
        assert "Digits.predict" in line

    def test_input_is_no_json(self, ledger: Ledger, shared: Path) -> None:
        """Found before the job begins."""
        line = self.refused(ledger, "Mapped.square", "--run-dir", shared, text="1\n2\n{oops\n")
        assert "line 3 of" in line
        assert "is not JSON" in line

    @pytest.mark.parametrize("name", ["missing.jsonl", "missing.npy", "what.txt"])
    def test_input_is_not_there(self, ledger: Ledger, name: str) -> None:
        """Or says no format."""
        line = refusal("map", "A.b", "--input", ledger.path / name, "--output", ledger.path / "o.jsonl", status=2)
        assert name in line

    def test_output_has_no_place(self, ledger: Ledger, shared: Path) -> None:
        """Found before the job begins."""
        (ledger.path / "in.jsonl").write_text("1\n")
        line = refusal(
            *("map", "Mapped.square", "--input", ledger.path / "in.jsonl"),
            *("--output", ledger.path / "no/such/o.jsonl", "--run-dir", shared),
            status=2,
        )
        assert "the output cannot be written" in line

    def refused(self, ledger: Ledger, *arguments: str | Path, text: str = "1\n") -> str:
        """Run a job that is refused; return why."""
        source, output = ledger.path / "in.jsonl", ledger.path / "out.jsonl"
        source.write_text(text)
        line = refusal("map", *arguments, "--input", source, "--output", output, status=2)
        assert not list(ledger.path.glob("out.*")), "something was written"
        return line


def stops(pool: atomr_mp.Pool) -> bool:
    """Return whether a pool stops, or has ended."""
    try:
        return pool.status().reason == "the pool stops"
    except errors.AtomrError:
        return True


def test_interrupted_map_leaves_no_output_and_no_pool(ledger: Ledger) -> None:
    """Ctrl-C: status 130, the job's own pool ends, and no half output takes the place of a whole one."""
    output = ledger.path / "out.jsonl"
    with ledger.gate("gate") as gate:
        process = subprocess.Popen(
            [
                *(*CLI, "map", "Mapped.pass_gate", "--input", "-", "--output", str(output)),
                *("--actor", MAPPED, "--gpus", "1", *HOST, "--run-dir", str(ledger.run_dir())),
            ],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with running(process):
            assert process.stdin is not None
            process.stdin.write(f"{json.dumps([gate.path, 1])}\n")
            process.stdin.close()
            gate.wait()
            with atomr_mp.connect(run_dir=ledger.run_dir()) as pool:
                process.send_signal(signal.SIGINT)
                assert settled(lambda: stops(pool))  # before that the item's result could come first
            gate.open()
            assert process.stderr is not None
            told = process.stderr.read()
            assert process.wait(DEADLINE_S) == 130
    assert "interrupted: nothing is kept of 0 items" in told
    assert "--journal FILE" in told
    assert "Traceback" not in told
    assert not list(ledger.path.glob("out.*"))
    assert not ledger.processes()
    RunDirectory.create(ledger.run_dir()).close()


def test_a_map_whose_pool_is_stopped_ends_without_output(detached: Path, ledger: Ledger) -> None:
    """Status 2 and one error: items that were not sent have not failed, and get no lines."""
    source, output = ledger.path / "in.jsonl", ledger.path / "out.jsonl"
    with ledger.gate("gate") as gate:
        source.write_text("".join(f"{json.dumps([gate.path if n == 5 else '', n])}\n" for n in range(2000)))
        files = ("--input", str(source), "--output", str(output), "--journal", str(ledger.path / "journal"))
        process = subprocess.Popen(
            [*CLI, "map", "Mapped.pass_gate", *files, "--run-dir", str(detached)], stderr=subprocess.PIPE, text=True
        )
        with running(process), atomr_mp.connect(run_dir=detached) as pool:
            gate.wait()
            stopping = subprocess.Popen([*CLI, "stop", "--run-dir", str(detached)], stdout=subprocess.DEVNULL)
            with running(stopping):
                assert process.stderr is not None
                assert settled(lambda: pool.status().reason == "the pool stops")
                gate.open()
                told = process.stderr.read()
                assert process.wait(DEADLINE_S) == 2
                stopping.wait(DEADLINE_S)
    assert len(told.splitlines()) == 1, told
    assert "the same command goes on from there" in told
    assert not list(ledger.path.glob("out.*"))


def test_a_bad_line_of_stdin_fails_in_its_place(shared: Path) -> None:
    """Items before and after it are processed: stdin cannot be checked beforehand."""
    done = cli(*("map", "Mapped.square", "--input", "-", "--output", "-", "--run-dir", shared), stdin="1\n2\n{no\n4\n")
    assert done.returncode == 1, done.stderr
    first, second, bad, last = map(json.loads, done.stdout.splitlines())
    assert (first, second, last) == (1, 4, 16)
    assert bad["error"]["code"] == "invalid_request"
    assert "line 3 of stdin is not JSON" in bad["error"]["message"]


def test_a_map_does_not_write_over_its_own_files(shared: Path, ledger: Ledger) -> None:
    """By whatever path they are named."""
    source, link = ledger.path / "in.jsonl", ledger.path / "link.jsonl"
    source.write_text("1\n")
    link.symlink_to(source)
    new = ledger.path / "new.jsonl"
    for files in (
        ("--output", source),
        ("--output", link),
        ("--output", ledger.path / ".." / ledger.path.name / "in.jsonl"),
        ("--output", new, "--journal", source),
        ("--output", new, "--journal", new),
    ):
        line = refusal("map", "Mapped.square", "--input", source, *files, "--run-dir", shared, status=2)
        assert "are the same file" in line
    assert source.read_text() == "1\n"
    assert not new.exists()

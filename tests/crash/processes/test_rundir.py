"""The run directory: whose it is, who holds it, and what a killed supervisor leaves in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atomr_mp import errors
from atomr_mp.process import identity
from atomr_mp.process.files import rundir
from atomr_mp.process.files.rundir import RELAY_PROBE, HeldRunDirectory, PoolState, RunDirectory, default_run_dir
from atomr_mp.process.identity import Identity, start_ticks
from tests.support import Ledger

SLEEPER = (sys.executable, "-I", "-S", "-c", "print(flush=True); input()")
HOLDER = """
import sys
from pathlib import Path
from atomr_mp.process.identity import start_ticks
from atomr_mp.process.files.rundir import RunDirectory
held = RunDirectory.create(Path(sys.argv[1]))
for pid in sys.argv[2:]:
    held.record_worker(int(pid), start_ticks(int(pid)))
held.session_socket.touch()
held.worker_socket(0, 1).touch()
print(flush=True)
input()
held.close()
"""


@contextlib.contextmanager
def process(*argv: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that says a line when it has arrived, and waits for one to go on."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"\n"
            yield child
        finally:
            child.kill()


def holder(path: Path, *workers: int) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Run a supervisor that holds `path` and has noted these workers."""
    return process(sys.executable, "-c", HOLDER, str(path), *map(str, workers))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A run directory that is not there yet."""
    return tmp_path / "pool"


def test_a_new_directory_is_private_and_records_its_supervisor(path: Path) -> None:
    """Mode 0700, a lock that no child gets, paths that differ; closing twice is fine."""
    with RunDirectory.create(path) as held:
        assert path.stat().st_mode & 0o777 == 0o700
        assert held.supervisor == Identity.of(os.getpid())
        assert RunDirectory.open(path).supervisor == held.supervisor
        assert not os.get_inheritable(held._lock_fd)
        assert not os.get_inheritable(held._directory_fd)
        names = {held.session_socket, held.worker_socket(0, 1), held.log("device-0"), held.events}
        assert {found.parent for found in names} == {path}
        assert len(names) == 4
        held.session_socket.touch()
        held.log("device-0").touch()
    held.close()
    assert not held.session_socket.exists()
    assert held.log("device-0").exists()


def test_what_a_relay_leaves_that_is_killed_while_it_starts_goes_with_the_pool(path: Path) -> None:
    """It goes at the pool's end, or at the next start."""
    for end in (HeldRunDirectory.clean, HeldRunDirectory.close):
        with RunDirectory.create(path) as held:
            (path / RELAY_PROBE).touch()
            end(held)
            assert not (path / RELAY_PROBE).exists()


def test_a_held_directory_is_refused_naming_the_holder(path: Path) -> None:
    """A second supervisor fails at once and learns who is there; after an orderly end it may go on."""
    with holder(path) as other:
        with pytest.raises(errors.PoolBusy, match=f"pid {other.pid}") as caught:
            RunDirectory.create(path)
        assert caught.value.supervisor_pid == other.pid
        assert RunDirectory.open(path).supervisor.pid == other.pid
        other.communicate(b"\n")
        RunDirectory.create(path).close()


def test_a_holder_that_has_not_written_its_pid_yet_is_busy_too(path: Path) -> None:
    """The lock decides, not what the file says."""
    RunDirectory.create(path).close()
    with (path / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(errors.PoolBusy, match="just starting") as caught:
            RunDirectory.create(path)
    assert caught.value.supervisor_pid == 0


def test_a_client_learns_whether_a_pool_was_never_there_was_stopped_or_was_killed(path: Path) -> None:
    """Each case has its own sentence, and none changes anything."""
    with pytest.raises(errors.PoolUnreachable, match="there is no pool at"):
        RunDirectory.open(path)
    RunDirectory.create(path).close()
    with pytest.raises(errors.PoolUnreachable, match=r"no pool runs at .*pool; start one"):
        RunDirectory.open(path)
    with holder(path) as supervisor:
        supervisor.kill()
        supervisor.wait()
        with pytest.raises(errors.PoolUnreachable, match=f"pid {supervisor.pid}.* the next start there cleans up"):
            RunDirectory.open(path)


def test_the_next_start_ends_the_survivors_of_a_killed_supervisor_and_cleans_up(path: Path) -> None:
    """Only a process that is really the one noted is ended; sockets and notes are gone afterwards."""
    with process(*SLEEPER) as worker, process(*SLEEPER) as reused, holder(path, worker.pid) as supervisor:
        supervisor.kill()
        supervisor.wait()
        (path / "workers" / "12x").write_text("half a no")
        with RunDirectory.create(path) as held:
            held.record_worker(reused.pid, start_ticks(reused.pid) + 1)
            held.record_worker(supervisor.pid, 1)
            expected = Identity.of(worker.pid)
            assert held.survivors() == [expected]
            assert held.end_survivors(timeout_s=20) == [expected]
            assert worker.wait() < 0
            assert reused.poll() is None
            assert held.survivors() == held.end_survivors(timeout_s=0) == []
            held.clean()
            assert list((path / "workers").iterdir()) == list(path.glob("*.sock")) == []


def test_a_survivor_of_sigkill_is_a_typed_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are stuck in the driver are named, and nothing is started over them."""
    monkeypatch.setattr(rundir.signal, "pidfd_send_signal", lambda *_args: None)  # type: ignore[attr-defined]
    with process(*SLEEPER) as worker, RunDirectory.create(path) as held:
        held.record_worker(worker.pid, start_ticks(worker.pid))
        with pytest.raises(errors.Unrecoverable, match=f"pid {worker.pid}") as caught:
            held.end_survivors(timeout_s=0.01)
        assert not caught.value.maybe_executed


def test_a_forgotten_worker_is_no_survivor(path: Path) -> None:
    """Forgetting twice is fine."""
    with RunDirectory.create(path) as held:
        held.record_worker(os.getpid(), start_ticks(os.getpid()))
        assert held.survivors() == [held.supervisor]
        held.forget_worker(os.getpid())
        held.forget_worker(os.getpid())
        assert held.survivors() == []


def _open_to_others(path: Path) -> None:
    path.mkdir()
    path.chmod(0o750)


def _a_link(path: Path) -> None:
    (path.parent / "real").mkdir(mode=0o700)
    path.symlink_to("real")


def _a_file(path: Path) -> None:
    path.touch(mode=0o600)


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (_open_to_others, r"mode 0750.*chmod 700 /"),
        (_a_link, "symbolic link.*realpath"),
        (_a_file, "not a directory"),
    ],
)
def test_an_unsafe_directory_is_refused_with_what_to_do(
    path: Path, prepare: Callable[[Path], None], words: str
) -> None:
    """Supervisors and clients refuse it alike."""
    prepare(path)
    with pytest.raises(errors.ConfigurationError, match=words):
        RunDirectory.create(path)
    with pytest.raises(errors.ConfigurationError, match=words):
        RunDirectory.open(path)


@pytest.mark.parametrize("levels", [1, 2])
def test_a_directory_that_everybody_may_write_above_is_refused(tmp_path: Path, levels: int) -> None:
    """Another user could put one of theirs in its place; the sticky bit, as /tmp has it, forbids that."""
    above = tmp_path / "above"
    path = above.joinpath(*["mine", "pool"][-levels:])
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    above.chmod(0o777)
    path.mkdir(mode=0o700)
    for opened in (RunDirectory.create, RunDirectory.open):
        with pytest.raises(errors.ConfigurationError, match=f"everybody may write {above} .*no sticky bit.*chmod o-w"):
            opened(path)
    above.chmod(0o1777)
    RunDirectory.create(path).close()


def test_a_hidden_proc_is_named_as_the_cause(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The supervisor lives, and no report says that it was killed."""
    with RunDirectory.create(path) as held:
        hidden = tmp_path / "proc"
        monkeypatch.setattr(identity, "PROC", hidden)
        with pytest.raises(errors.ConfigurationError, match=rf"process {os.getpid()} runs, and .* hidepid"):
            RunDirectory.open(path)
        with pytest.raises(errors.ConfigurationError, match="boot_id cannot be read"):
            identity.boot_id()
        monkeypatch.undo()
        assert RunDirectory.open(path).supervisor == held.supervisor


def test_a_link_one_level_up_is_refused_too(tmp_path: Path) -> None:
    """Below a directory like /tmp, the per-user directory is what others could prepare."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(errors.ConfigurationError, match="link is a symbolic link"):
        RunDirectory.create(tmp_path / "link" / "pool")


def test_a_directory_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever made it could read and replace what is in it."""
    path.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(errors.ConfigurationError, match="uid 12345"):
        RunDirectory.open(path)


def test_a_directory_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    """No more than two levels are made."""
    with pytest.raises(errors.ConfigurationError, match="cannot be made"):
        RunDirectory.create(tmp_path / "no" / "such" / "pool")


def test_a_path_too_long_for_sockets_is_refused_with_its_length(tmp_path: Path) -> None:
    """The limit is checked for the longest name before anything is made, to the byte."""
    longest = "/d999-g999999.sock"
    fits = "x" * (107 - len(longest) - len(os.fsencode(tmp_path)) - 1)
    RunDirectory.create(tmp_path / fits).close()
    with pytest.raises(errors.ConfigurationError, match=r"108 bytes.* 107.* 1 bytes shorter"):
        RunDirectory.create(tmp_path / (fits + "x"))
    assert not (tmp_path / (fits + "x")).exists()


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "a b", "x" * 65, "pool\n", "é"])
def test_a_bad_pool_name_is_refused(name: str) -> None:
    """A name is one component of a path and never hidden."""
    with pytest.raises(errors.ConfigurationError, match="no name for a pool"):
        default_run_dir(name)


def test_the_default_is_the_session_s_directory_only_if_it_is_ours_and_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is another user's, as under sudo, or missing, the temporary directory is used."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("TMPDIR", "relative")
    assert default_run_dir("a.B-1_") == runtime / "atomr-mp" / "a.B-1_"
    fallback = Path("/tmp") / f"atomr-mp-{os.geteuid()}" / "a"
    runtime.chmod(0o770)
    assert default_run_dir("a") == fallback
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    assert default_run_dir("a") == fallback
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert default_run_dir("a") == tmp_path / fallback.parent.name / "a"


def test_a_default_directory_that_another_user_keeps_to_himself_has_no_pools(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one that cannot be entered, nor what is no directory at all, is an error."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    monkeypatch.setenv("TMPDIR", str(ledger.path))
    base = default_run_dir("x").parent
    base.touch()
    assert RunDirectory.list_pools() == []
    base.unlink()
    base.mkdir(mode=0o000)
    assert RunDirectory.list_pools() == []


def test_pools_are_listed_with_their_state(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Running and stale ones; those stopped in order, and what is no pool, are left out."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    monkeypatch.setenv("TMPDIR", str(ledger.path))
    assert RunDirectory.list_pools() == []
    RunDirectory.create(default_run_dir("stopped")).close()
    (default_run_dir("x").parent / "file").touch()
    with holder(default_run_dir("running")) as running, holder(default_run_dir("killed")) as killed:
        killed.kill()
        killed.wait()
        found = RunDirectory.list_pools()
        assert [(pool.name, pool.state, pool.supervisor_pid) for pool in found] == [
            ("killed", PoolState.STALE, killed.pid),
            ("running", PoolState.RUNNING, running.pid),
        ]
        assert found[1].path == default_run_dir("running")

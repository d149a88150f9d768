"""Real processes: how they start, how their end is seen, and that nothing of them stays."""

from __future__ import annotations

import errno
import gc
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from atomr_mp import errors
from atomr_mp.process import adopt, prctl
from atomr_mp.process.cgroup import CgroupParent, WorkerCgroup
from atomr_mp.process.files.rundir import RunDirectory
from atomr_mp.process.identity import Identity, boot_id, start_ticks, wait_ended
from atomr_mp.process.spawn import ExitCause, WorkerProcess, spawn
from atomr_mp.protocol.board import BOARD_BYTES, check
from atomr_mp.protocol.codec import MAX_SESSION_MESSAGE_BYTES
from atomr_mp.protocol.messages.control import FROM_WORKER, ActorSpec, Prepare, SessionAdmitted
from atomr_mp.supervision.standby import MAX_FAILURES
from atomr_mp.supervisor.care import helpers as helpers_module
from atomr_mp.supervisor.care.helpers import Helpers
from atomr_mp.supervisor.loop import Loop
from atomr_mp.supervisor.processes.incarnation import LOOKS, Incarnation
from atomr_mp.supervisor.processes.prefork_pool import PreforkPool
from tests.support import settled
from tests.waiting import readable

DEADLINE_S = 20.0
PYTHON = (sys.executable, "-I", "-S", "-c")
PREAMBLE = """
import mmap, os, signal, socket, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
control = socket.socket(fileno=int(options["--control-fd"]))
def say(text): control.send(str(text).encode())
def wait(): return control.recv(2**21)
"""
WAIT_TO_BE_LET_GO = "say('here'); wait()"


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    """Whatever a test does, no descriptor and no child of it is left."""
    gc.collect()  # what earlier tests have left is not to be closed meanwhile
    this = psutil.Process()
    fds, children = this.num_fds(), adopt.adopted_children(set())
    yield
    assert adopt.adopted_children(set(children)) == []
    assert this.num_fds() == fds


@pytest.fixture
def subreaper() -> Iterator[set[int]]:
    """Make this process a subreaper; give the pids of the children it already has."""
    prctl.set_child_subreaper()
    yield set(adopt.adopted_children(set()))
    prctl.set_child_subreaper(enabled=False)


def start(code: str, *, argv: Sequence[str] = PYTHON, core_dumps: bool = False) -> WorkerProcess:
    """Spawn a stand-in for a worker that runs `code`."""
    return spawn(
        pool="test",
        device=3,
        generation=7,
        env=dict(os.environ),
        output_fd=sys.__stderr__.fileno() if sys.__stderr__ else 2,
        argv=[*argv, PREAMBLE + code],
        core_dumps=core_dumps,
    )


def hear(worker: WorkerProcess) -> str:
    """Return what the child says next on its control channel."""
    poll = select.poll()
    poll.register(worker.control, select.POLLIN)
    assert poll.poll(DEADLINE_S * 1000), "the child did not speak"
    return worker.control.recv(2**21).decode()


def ended(pidfd: int) -> bool:
    """Wait for the end of a process; return whether it came."""
    return wait_ended([pidfd], DEADLINE_S) == {pidfd}


def end(worker: WorkerProcess) -> ExitCause:
    """Wait for a worker's end and reap it."""
    assert ended(worker.pidfd), "the child did not end"
    return worker.reap()


@pytest.mark.parametrize(
    ("code", "cause", "words"),
    [
        ("os._exit(0)", ExitCause(status=0), "exited with status 0"),
        ("os._exit(3)", ExitCause(status=3), "exited with status 3"),
        ("os.kill(os.getpid(), 9)", ExitCause(signal=9), "killed by SIGKILL"),
        ("os.kill(os.getpid(), 11)", ExitCause(signal=11), "killed by SIGSEGV"),
        ("os.kill(os.getpid(), 40)", ExitCause(signal=40), "killed by signal 40"),
    ],
)
def test_the_pidfd_tells_of_the_end_and_reap_of_its_cause(code: str, cause: ExitCause, words: str) -> None:
    """An exit and a signal are distinguished, and said in words."""
    with start(code) as worker:
        assert ended(worker.pidfd)
        assert worker.dying() == (cause if words != "exited with status 0" else None)
        assert end(worker) == cause
        assert worker.dying() is None
        assert worker.reap().describe() == words
        assert worker.pidfd == -1


def test_a_cause_that_another_wait_took_is_not_invented() -> None:
    """A status that is gone is called unknown."""
    with start("os._exit(3)") as worker:
        assert ended(worker.pidfd)
        os.waitpid(worker.pid, 0)
        assert worker.reap().describe() == "ended, how is not known"


def test_a_frozen_worker_runs_no_more_and_can_be_killed() -> None:
    """Its stop is reported once, and not before it was asked for."""
    with start(WAIT_TO_BE_LET_GO) as worker:
        hear(worker)
        assert not worker.frozen()
        worker.freeze()
        assert settled(worker.frozen)
        assert psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED
        assert not worker.frozen()
        worker.kill()
        assert end(worker).describe() == "killed by SIGKILL"
        worker.freeze()
        assert not worker.frozen()


def test_the_end_of_a_thread_tells_of_the_process_s() -> None:
    """Where the kernel can say so."""
    sleeping = "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    with start(f"{sleeping}; {WAIT_TO_BE_LET_GO}") as worker:
        hear(worker)
        threads = worker.open_threads()
        if not threads:
            pytest.skip("pidfds of threads came with Linux 6.9")
        try:
            assert len(threads) == 2
            assert not readable(threads, 0)
            assert worker.running()
            worker.kill()
            assert readable(threads, DEADLINE_S)
            assert settled(lambda: not worker.running())
        finally:
            for thread in threads:
                os.close(thread)
        assert end(worker).describe() == "killed by SIGKILL"


def test_a_thread_that_ends_while_it_is_looked_at_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many are watched as otherwise."""
    sleeping = "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    open_thread, looked_at = os.pidfd_open, list[int]()

    def second_is_gone(thread: int, flags: int = 0) -> int:
        looked_at.append(thread)
        if len(looked_at) == 2:
            raise ProcessLookupError
        return open_thread(thread, flags)

    with start(f"import threading, time; {sleeping}; {sleeping}; {sleeping}; {WAIT_TO_BE_LET_GO}") as worker:
        hear(worker)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pidfd_open", second_is_gone)
            threads = worker.open_threads()
        if not threads:
            pytest.skip("pidfds of threads came with Linux 6.9")
        for thread in threads:
            os.close(thread)
        assert len(threads) == 3
        worker.kill()
        end(worker)


def test_a_first_thread_that_ended_before_the_others_is_not_watched() -> None:
    """It stays as long as they do, and its pidfd says at once that it has ended."""
    code = (
        "import ctypes, threading; threading.Thread(target=wait).start(); say(1); ctypes.CDLL(None).pthread_exit(None)"
    )
    with start(code) as worker:
        hear(worker)
        status = Path(f"/proc/{worker.pid}/stat")
        assert settled(lambda: status.read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z")
        threads = worker.open_threads()
        try:
            assert worker.running()
            assert worker.dying() is None
            assert not readable(threads, 0)
        finally:
            for thread in threads:
                os.close(thread)
        worker.kill()
        assert end(worker).describe() == "killed by SIGKILL"


class Threaded:
    """As much of a worker's process as its incarnation needs: threads of it end when the test wants that."""

    pid, generation = 1, 1

    def __init__(self) -> None:
        self.pidfd = os.eventfd(0)
        self.threads = [os.eventfd(0), os.eventfd(0)]
        self.control, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        self.looks = 0
        self.dies_at = 0
        """At which look it dies; 0 if it never does."""
        self.stops_at = 0
        """At which look it has stopped running; 0 if that is never to be seen."""

    def open_threads(self) -> list[int]:
        """Return what becomes readable when the threads end, of those that have not; the caller's."""
        return [os.dup(thread) for thread in self.threads if not readable([thread], 0)]

    def dying(self) -> ExitCause | None:
        """Return whether it dies."""
        self.looks += 1
        return ExitCause(signal=9) if 0 < self.dies_at <= self.looks else None

    def running(self) -> bool:
        """Return whether a thread of it runs."""
        return not 0 < self.stops_at <= self.looks

    def close(self) -> None:
        """Close everything."""
        for descriptor in (self.pidfd, *self.threads):
            os.close(descriptor)
        self.control.close()
        self.theirs.close()


@pytest.mark.parametrize(
    ("dies_at", "stops_at", "told", "looks"),
    [
        (0, 0, ["heard"], LOOKS + 1),
        (1, 0, ["heard", "dies"], LOOKS + 1),
        (1, 1, ["heard", "dies", "stopped"], 1),
        (LOOKS, LOOKS + 1, ["heard", "dies", "stopped"], LOOKS + 1),
    ],
)
def test_an_incarnation_is_told_to_die_when_its_process_does_and_not_only_a_thread(
    dies_at: int, stops_at: int, told: list[str], looks: int
) -> None:
    """The report comes after its last messages, and before it has hung up. A thread may end by itself."""
    loop, process, owner = Loop(), Threaded(), Mock()
    process.dies_at, process.stops_at = dies_at, stops_at
    worker = Incarnation(0, process, loop, None, owner, owner, 60.0)  # type: ignore[arg-type]
    worker.watch_threads()
    process.theirs.send(FROM_WORKER.encode(SessionAdmitted(7)))
    os.eventfd_write(process.threads[1], 1)
    assert len(worker._threads) == 2

    def look() -> None:
        loop.stop() if process.looks >= looks else loop.call_later(0, look)

    look()
    loop.run()
    assert [call[0] for call in owner.method_calls] == told
    assert process.looks == looks
    assert len(worker._threads) == (0 if stops_at else 1)
    worker.close()
    loop.close()


def test_a_running_worker_is_not_reaped_and_a_reaped_one_not_killed() -> None:
    """Reap refuses before the end, and after it kill leaves the pid alone."""
    with start(WAIT_TO_BE_LET_GO) as worker:
        hear(worker)
        assert worker.dying() is None
        with pytest.raises(RuntimeError, match="still runs"):
            worker.reap()
        assert "running" in repr(worker)
        worker.kill()
        assert end(worker).describe() == "killed by SIGKILL"
        worker.kill()
        assert "killed by SIGKILL" in repr(worker)


def test_reap_kills_what_remains_of_the_process_group(subreaper: set[int]) -> None:
    """A child that outlives its worker in the same group is killed before the worker is reaped."""
    code = "pid = os.fork()\nif pid == 0:\n  while True: signal.pause()\nsay(pid); wait(); os._exit(0)"
    with start(code) as worker:
        child = os.pidfd_open(int(hear(worker)))
        try:
            worker.control.send(b"go")
            assert end(worker) == ExitCause(status=0)
            assert ended(child)
        finally:
            os.close(child)
    assert adopt.kill_adopted(subreaper, DEADLINE_S) == []


def test_grandchildren_that_left_the_group_are_adopted_and_killed(subreaper: set[int]) -> None:
    """A chain of processes, each in its own session, ends with the worker; known children are not touched."""
    code = """
say_pid = os.getpid()
for depth in range(3):
    if os.fork():
        break
    os.setsid()
else:
    say('chain')
if os.getpid() == say_pid: wait(); os._exit(0)
while True: signal.pause()
"""
    with start(WAIT_TO_BE_LET_GO) as bystander, start(code) as worker:
        assert hear(bystander) == "here"
        assert hear(worker) == "chain"
        worker.control.send(b"go")
        end(worker)
        known = subreaper | {bystander.pid}
        orphans = adopt.adopted_children(known)
        assert orphans
        assert orphans == [pid for pid in adopt._children_by_scan() if pid not in known]
        assert adopt.kill_adopted(known, DEADLINE_S) == []
        assert adopt.adopted_children(known) == []
        bystander.control.send(b"go")
        assert end(bystander) == ExitCause(status=0)


def test_without_time_adopted_processes_are_killed_and_named(subreaper: set[int]) -> None:
    """A supervisor that must not wait may come back later."""
    code = "pid = os.fork()\nif pid == 0:\n  os.setsid(); say(os.getpid())\n  while True: signal.pause()\nwait()"
    with start(code) as worker:
        orphan = int(hear(worker))
        orphan_fd = os.pidfd_open(orphan)
        try:
            worker.control.send(b"go")
            end(worker)
            assert set(adopt.kill_adopted(subreaper, 0)) <= {orphan}
            assert ended(orphan_fd)
        finally:
            os.close(orphan_fd)
        assert adopt.kill_adopted(subreaper, 0) == []


def test_a_worker_dies_with_its_killed_supervisor() -> None:
    """SIGKILL of the supervisor leaves no worker, though nothing had time to clean up."""
    worker_code = (
        "from atomr_mp.process.prctl import die_with_parent\n"
        "die_with_parent(int(options['--parent'])); print(os.getpid(), flush=True); wait()"
    )
    supervisor_code = (
        "import os, sys\nfrom atomr_mp.process.spawn import spawn\n"
        "worker = spawn(pool='p', device=0, generation=1, env=os.environ, output_fd=1, argv=sys.argv[1:])\n"
        "sys.stdin.read()"
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-c", supervisor_code, sys.executable, "-c", PREAMBLE + worker_code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with supervisor:
        assert supervisor.stdout is not None
        worker = os.pidfd_open(int(supervisor.stdout.readline()))
        try:
            assert wait_ended([worker], 0) == set()
            supervisor.kill()
            assert ended(worker)
        finally:
            os.close(worker)


def test_a_worker_whose_parent_is_already_gone_exits_at_once() -> None:
    """The gap between the start and the kernel's setting is closed by comparing the parent."""
    code = f"""
sys.path[:0] = {sys.path!r}
from atomr_mp.process.prctl import die_with_parent
die_with_parent(int(options["--parent"]))
say("still here")
die_with_parent(1)
"""
    with start(code) as worker:
        assert hear(worker) == "still here"
        assert end(worker) == ExitCause(status=1)


def test_what_is_made_ahead_and_ends_at_once_harms_nobody(tmp_path: Path) -> None:
    """It is tried again, but not for ever, and no dead process is handed out."""
    made: list[WorkerProcess] = []

    def fork() -> WorkerProcess:
        made.append(start("os._exit(0)"))
        assert ended(made[-1].pidfd)
        return made[-1]

    loop = Loop()

    def look() -> None:
        loop.call_later(0, look) if reserve.pids else loop.stop()

    with RunDirectory.create(tmp_path / "run") as run_dir:
        reserve = PreforkPool(loop, run_dir, lambda _: Prepare("host", [ActorSpec("Echo", "echo:Echo")]))
        reserve.fill(0, fork)
        assert reserve.take(0) is None
        reserve.fill(0, fork)
        look()
        loop.run()
        assert len(made) == 1 + MAX_FAILURES
    loop.close()


def test_a_refused_prctl_is_an_os_error() -> None:
    """The kernel's refusal comes as errno, like every call of the os module."""
    with pytest.raises(OSError, match=r"prctl\(-1, 0\)") as caught:
        prctl._prctl(-1, 0)
    assert caught.value.errno == errno.EINVAL


def test_a_worker_is_told_what_it_is_and_gets_nothing_else() -> None:
    """Its own group, its title for `ps`, no descriptor but the standard ones and its two, no core dumps."""
    code = "say(' '.join(os.listdir('/proc/self/fd'))); wait()"
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    leak = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leak, True)
    try:
        with start(code) as worker:
            fds = {int(fd) for fd in hear(worker).split()}
            command = Path(f"/proc/{worker.pid}/cmdline").read_text(encoding="utf-8").split("\0")
            options = dict(zip(command[-9:-1:2], command[-8:-1:2], strict=True))
            assert options["--title"] == "atomr-mp test device 3 generation 7"
            assert options["--parent"] == str(os.getpid())
            listing = 1  # the descriptor by which the directory was read
            assert len(fds - {0, 1, 2, int(options["--control-fd"]), int(options["--board-fd"])}) == listing
            assert (os.getpgid(worker.pid), worker.generation) == (worker.pid, 7)
            assert resource.prlimit(worker.pid, resource.RLIMIT_CORE) == (
                min(1, hard) if hard >= 0 else 1,
                hard,
            )
            assert not worker.control.get_inheritable()
            assert not worker.control.getblocking()
    finally:
        os.close(leak)


def test_core_dumps_are_left_alone_when_wanted() -> None:
    """The limit is then the supervisor's own."""
    with start(WAIT_TO_BE_LET_GO, core_dumps=True) as worker:
        assert resource.prlimit(worker.pid, resource.RLIMIT_CORE) == resource.getrlimit(resource.RLIMIT_CORE)


def test_packets_pass_whole_up_to_the_size_that_the_kernel_allows() -> None:
    """Both directions take over 400 KiB, and refuse more than the largest message."""
    code = "data = wait(); control.send(data); data = wait(); say(len(data))"
    with start(code) as worker:
        size = worker.control.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) - 32
        size = min(size, MAX_SESSION_MESSAGE_BYTES)
        assert size > 400 * 1024
        worker.control.send(b"x" * size)
        assert len(hear(worker)) == size
        with pytest.raises(OSError, match=os.strerror(errno.EMSGSIZE)):
            worker.control.send(b"x" * (3 * MAX_SESSION_MESSAGE_BYTES))
        worker.control.send(b"bye")
        assert hear(worker) == "3"
        end(worker)
        assert worker.control.recv(16) == b""


def test_the_board_is_shared_and_cannot_be_resized_and_outlives_the_worker() -> None:
    """A worker's notes are read after its death, and neither side can make the other's access fault."""
    code = f"""
fd = int(options["--board-fd"])
board = mmap.mmap(fd, {BOARD_BYTES})
board[:5] = b"alive"
for size in (0, 2 * {BOARD_BYTES}):
    try: os.ftruncate(fd, size)
    except PermissionError: continue
    os._exit(1)
os.kill(os.getpid(), signal.SIGKILL)
"""
    worker = start(code)
    view = worker.board.cast("Q")
    assert end(worker).describe() == "killed by SIGKILL"
    worker.close()
    worker.close()
    assert (view.nbytes, view.tobytes()[:5]) == (BOARD_BYTES, b"alive")
    view.release()


def test_a_board_is_believed_before_its_worker_has_found_it() -> None:
    """A worker may die while its interpreter starts; nothing was written over its board."""
    with start(WAIT_TO_BE_LET_GO) as worker, worker.board.cast("Q") as words:
        assert check.defect(words, time.monotonic_ns()) == ""


def test_closing_ends_a_worker_that_still_runs() -> None:
    """Leaving the `with` block kills and reaps."""
    with start(WAIT_TO_BE_LET_GO) as worker:
        hear(worker)
        pidfd = os.pidfd_open(worker.pid)
    try:
        assert wait_ended([pidfd], 0) == {pidfd}
    finally:
        os.close(pidfd)
    assert not worker.identity.alive()


def test_a_failed_start_leaves_nothing() -> None:
    """A program that is not there is a typed error; the fixture looks for what could be left."""
    with pytest.raises(errors.SetupFailed, match="device 3"):
        start("", argv=["/nonexistent/python"])


def test_a_start_that_fails_half_way_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that cannot be watched is not left running."""

    def refuse(pid: int) -> int:
        raise OSError(errno.EMFILE, f"no pidfd of {pid}")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(errors.SetupFailed, match="no pidfd"):
        start(WAIT_TO_BE_LET_GO)


def test_workers_are_not_started_from_other_threads() -> None:
    """They would end with the thread."""
    caught: list[BaseException] = []

    def try_it() -> None:
        try:
            start("")
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=try_it)
    thread.start()
    thread.join(DEADLINE_S)
    assert "main thread" in str(caught[0])


def test_a_launcher_that_ignored_sigchld_does_not_cost_the_exit_status() -> None:
    """An ignored SIGCHLD is inherited over exec, and would make the kernel reap by itself."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with start("os._exit(3)") as worker:
            assert end(worker) == ExitCause(status=3)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_helper_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks the driver, and may be stuck there: the supervisor is to end all the same."""
    loop = Loop()
    helpers = Helpers(loop)
    called: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "kill", lambda _: None)  # as if it hung in the kernel
        patched.setattr(helpers_module, "KILL_S", 0.01)
        helpers.start("tests.programs.staying", [], [], called.append)
        (pid,) = helpers.pids
        helpers.kill()
    assert not helpers.pids
    os.kill(pid, signal.SIGKILL)
    assert os.waitpid(pid, 0) == (pid, signal.SIGKILL)
    helpers.start("tests.programs.staying", [], [], called.append)
    helpers.kill()
    loop.close()
    assert not called


def test_an_identity_is_of_one_process_only() -> None:
    """Another start time or boot is another process; a zombie has ended; half a text is nothing."""
    with start(WAIT_TO_BE_LET_GO) as worker:
        hear(worker)
        identity = worker.identity
        assert identity == Identity(worker.pid, start_ticks(worker.pid), boot_id())
        assert Identity.parse(f"{identity}\n") == identity
        assert identity.alive()
        assert not Identity(worker.pid, identity.start_ticks + 1, identity.boot_id).alive()
        assert not Identity(worker.pid, identity.start_ticks, "0" * 36).alive()
        worker.kill()
        assert ended(worker.pidfd)
        assert not identity.alive()
        worker.reap()
        with pytest.raises(ProcessLookupError):
            Identity.of(worker.pid)
        assert not identity.alive()
    text = str(identity)
    assert all(Identity.parse(text[:n]) is None for n in range(len(text)))


def test_a_cgroup_kills_what_hides_from_group_and_session(subreaper: set[int]) -> None:
    """All that a worker started ends at once, and the cgroup can be removed."""
    parent = CgroupParent.find()
    if parent is None:
        pytest.skip("no writable version 2 cgroup here")
    code = "wait()\nif os.fork() == 0:\n  os.setsid(); say(os.getpid())\n  while True: signal.pause()\nwait()"
    with start(code) as worker:
        cgroup = parent.add(f"atomr-mp-test-{os.getpid()}", worker.pid)
        if cgroup is None:
            pytest.skip("no cgroup can be made here")
        try:
            worker.control.send(b"fork")
            hidden = os.pidfd_open(int(hear(worker)))
            assert not cgroup.remove()
            assert cgroup.kill()
            assert ended(hidden)
            os.close(hidden)
            assert end(worker).describe() == "killed by SIGKILL"
        finally:
            assert cgroup.remove(DEADLINE_S)
        assert cgroup.remove()
        assert not cgroup.kill()
    assert adopt.kill_adopted(subreaper, DEADLINE_S) == []


def test_a_cgroup_tells_what_was_killed_for_want_of_memory(tmp_path: Path) -> None:
    """Its own counter tells. Without a memory controller, or with an empty line, nothing is said."""
    cgroup = WorkerCgroup(tmp_path)
    assert cgroup.oom_kills() == 0
    events = tmp_path / "memory.events"
    for text, kills in (("low 0\noom 3\noom_kill 2\noom_group_kill 1\n", 2), ("oom_kill\n", 0), ("oom_kill x\n", 0)):
        events.write_text(text)
        assert cgroup.oom_kills() == kills


def test_without_cgroups_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cgroup that cannot be made is None, not an exception."""
    assert CgroupParent(tmp_path).add("worker", os.getpid()) is None
    monkeypatch.setattr(Path, "read_text", lambda *_args, **_named: "1:cpu:/\n")
    assert CgroupParent.find() is None

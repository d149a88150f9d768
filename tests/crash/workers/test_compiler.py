"""Sources are compiled in processes of their own: whatever a source does, its caller's process goes on."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, Self

import psutil
import pytest

from atomr_mp import errors
from atomr_mp_workers.compiling import compiler as compiler_module
from atomr_mp_workers.compiling import compiler_process, toolkits, turns
from atomr_mp_workers.compiling.cache import CodeCache
from atomr_mp_workers.compiling.compiler import Compilation, Compiler
from atomr_mp_workers.compiling.compiler_process import CompilerProcess, confines
from atomr_mp_workers.compiling.jobs import CodeKind, CompiledCode, CompileJob, Job, LinkInput, LinkJob, check
from atomr_mp_workers.compiling.limits import CompileLimits
from atomr_mp_workers.compiling.toolkits import Toolkit
from tests.programs.compiles_for_ever import ENDLESS
from tests.support import DEADLINE_S, PROMISE_S, Program, Watched, settled

PROGRAMS: Final = Path(__file__).parents[2] / "programs"
FOUND: Final = [found for major in toolkits.MAJORS if (found := toolkits.find(major)) and found.version[0] == major]
LIMITS: Final = CompileLimits(cpu_s=30, idle=False)
"""Jobs take their share of a busy machine, so that tests end."""
SHORT: Final = CompileLimits(cpu_s=2, idle=False)
ARCHITECTURE: Final = "sm_90"

KERNEL: Final = 'extern "C" __global__ void k(float* x) { x[0] = 1; }'
BODY: Final = 'extern "C" __global__ void k(int* x) {%s}'
DIGITS: Final = "\n".join(f"#define D{n + 1} {'+'.join([f'D{n}'] * 10)}" for n in range(8))

pytestmark = pytest.mark.skipif(not FOUND, reason="NVRTC is not installed: the extra nvrtc13 brings it")


@pytest.fixture(scope="module", params=FOUND, ids=lambda found: f"cuda{found.version[0]}")
def toolkit(request: pytest.FixtureRequest) -> Toolkit:
    """Each toolkit that is installed."""
    found: Toolkit = request.param
    return found


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Whatever a test does, no process and no descriptor of it is left."""
    this = psutil.Process()
    descriptors = this.num_fds()
    yield
    assert this.children() == []
    assert this.num_fds() == descriptors


@pytest.fixture
def make(toolkit: Toolkit) -> Iterator[Callable[..., Compiler]]:
    """Make compilers, and close them."""
    with contextlib.ExitStack() as undo:

        def made(limits: CompileLimits = LIMITS, cache: CodeCache | None = None, *, confined: bool = True) -> Compiler:
            compiler = Compiler(toolkit, cache, limits, confined=confined)
            undo.callback(compiler.close)
            return compiler

        yield made


def done(compiler: Compiler, job: Job, within_s: float = DEADLINE_S) -> CompiledCode:
    """Return a job's code."""
    return compiler.submit(job, time.monotonic() + within_s).result(DEADLINE_S * 2).code


def failed(compiler: Compiler, job: Job, within_s: float = DEADLINE_S) -> errors.CompilationFailed:
    """Return the error of a job that cannot be compiled."""
    error = compiler.submit(job, time.monotonic() + within_s).exception(DEADLINE_S * 2)
    assert isinstance(error, errors.CompilationFailed), error
    return error


def begun(compiler: Compiler, job: Job, owner: object = None) -> Future[Compilation]:
    """Submit a job, and wait until its process runs."""
    running = len(psutil.Process().children())
    future = compiler.submit(job, time.monotonic() + DEADLINE_S, owner)
    assert settled(lambda: len(psutil.Process().children()) > running)
    return future


def endless(number: int) -> CompileJob:
    """Return a job without end; those of different numbers are not equal."""
    return CompileJob(ENDLESS + "//" * number, ARCHITECTURE)


# --- results ---------------------------------------------------------------------------------------------------------


def test_a_source_becomes_code_of_each_kind(make: Callable[..., Compiler]) -> None:
    """Machine code, assembly, and intermediate code."""
    compiler = make()
    cubin = done(compiler, CompileJob(KERNEL, ARCHITECTURE))
    ptx = done(compiler, CompileJob(KERNEL, "compute_90", CodeKind.PTX))
    ltoir = done(compiler, CompileJob(KERNEL, ARCHITECTURE, CodeKind.LTOIR))
    assert cubin.code.startswith(b"\x7fELF")
    assert b".target sm_90" in ptx.code
    assert ltoir.code
    assert [each.kind for each in (cubin, ptx, ltoir)] == [CodeKind.CUBIN, CodeKind.PTX, CodeKind.LTOIR]


def test_a_template_is_lowered_by_its_name_expression(make: Callable[..., Compiler]) -> None:
    """The code has a kernel of the lowered name; names, headers, options and the toolkit's headers work together."""
    head = '#include <cuda_fp16.h>\n#include "my/scale.h"\n'
    source = head + "template<class T> __global__ void scale(T* x) { x[0] = SCALE + BY; }"
    headers = {"my/scale.h": '#include "my/by.h"\n#define SCALE 2', "my/by.h": "#define BY 1"}
    job = CompileJob(
        source, "sm_90a", names=("scale<float>", "&scale<__half>"), headers=headers, options=("-lineinfo",)
    )
    code = done(make(), job)
    assert code.lowered["scale<float>"] == "_Z5scaleIfEvPT_"
    assert all(name.encode() in code.code for name in code.lowered.values())


def test_headers_of_the_toolkit_find_each_other(make: Callable[..., Compiler], toolkit: Toolkit) -> None:
    """Also those that include their neighbours."""
    source = "#include <cooperative_groups.h>\n#include <cuda/std/array>\n" + KERNEL
    if not any((folder / "cuda" / "std").is_dir() for folder in toolkit.includes):
        pytest.skip("the headers of CCCL are not installed")
    assert done(make(), CompileJob(source, ARCHITECTURE)).code


def test_codes_are_linked_to_one(make: Callable[..., Compiler]) -> None:
    """LTO-IR with LTO-IR, and with PTX; what is missing is named."""
    compiler = make()
    rdc = ("-rdc=true",)
    use = 'extern __device__ float f(float); extern "C" __global__ void k(float* x) { x[0] = f(x[1]); }'
    f = done(
        compiler, CompileJob("__device__ float f(float x) { return x * 3; }", ARCHITECTURE, CodeKind.LTOIR, (), rdc)
    )
    k = done(compiler, CompileJob(use, ARCHITECTURE, CodeKind.LTOIR, (), rdc))
    ptx = done(compiler, CompileJob(use, "compute_90", CodeKind.PTX, (), rdc))
    first = LinkInput("f", f.kind, f.code)
    for other in (k, ptx):
        linked = done(compiler, LinkJob((first, LinkInput("k", other.kind, other.code)), ARCHITECTURE))
        assert linked.code.startswith(b"\x7fELF")
    assert (
        "Unresolved extern function" in failed(compiler, LinkJob((LinkInput("k", k.kind, k.code),), ARCHITECTURE)).log
    )
    for kind in CodeKind:
        failed(compiler, LinkJob((LinkInput("x", kind, b"garbage" * 1000),), ARCHITECTURE))


def test_warnings_come_with_the_code(make: Callable[..., Compiler]) -> None:
    """As messages, without lines of the source."""
    code = done(make(), CompileJob(BODY % "int unused; x[0] = 1;", ARCHITECTURE, name="mine.cu"))
    assert code.warnings == 'mine.cu(1): warning #177-D: variable "unused" was declared but never referenced'


def test_a_cached_code_needs_no_process(
    make: Callable[..., Compiler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any worker of the user, from its first answer on."""
    (tmp_path / "cache").mkdir(mode=0o700)
    job, cache, kept = CompileJob(KERNEL, ARCHITECTURE), CodeCache(tmp_path / "cache"), list[bool]()

    def look(future: Future[Compilation]) -> None:
        kept.append(cache.get(future.result().key) is not None)

    future = make(cache=cache).submit(job, time.monotonic() + DEADLINE_S)
    future.add_done_callback(look)
    first = future.result(DEADLINE_S)
    assert settled(lambda: kept == [True])
    monkeypatch.setattr(compiler_module, "CompilerProcess", None)
    again = make(cache=CodeCache(tmp_path / "cache"))
    found = again.submit(job, time.monotonic() + DEADLINE_S).result(DEADLINE_S)
    assert found == Compilation(first.code, first.key, cached=True)
    assert not first.cached


# --- hostile sources -------------------------------------------------------------------------------------------------

DEEP: Final = {
    "unary minus": BODY % ("x[0] = " + "- " * 300_000 + "1;"),
    "parentheses": BODY % ("x[0] = " + "(" * 400_000 + "1" + ")" * 400_000 + ";"),
    "braces": BODY % ("{" * 400_000 + "}" * 400_000),
    "pointers": 'extern "C" __global__ void k(int' + "*" * 400_000 + " x) {}",
}
ENDLESS_SOURCES: Final = {
    "macros": f"#define D0 1\n{DIGITS}\n" + BODY % "x[0] = D8;",
    "templates": ENDLESS,
    "nested ifs": BODY % ("if (x[0]) " * 6000 + "x[0] = 1;"),
    "conditionals": BODY % ("x[0] = " + "x[1] ? 2 : " * 6000 + "1;"),
    "a long chain": BODY % ("float a = x[0];" + "a = a * a + x[1];" * 150_000 + "x[0] = a;"),
}
WRONG: Final = {
    "storm": (BODY % "".join(f"y{n};" for n in range(50_000)), "is undefined"),
    "itself": ("#include __FILE__\n", "includes itself"),
    "missing": ("#include <nothere.h>\n", "nothere.h"),
    "syntax": ("__global__ void k(int* x) { x[0] = ", "At end of source: error"),
    "recursion": (
        "template<int N> struct A { static const int v = A<N + 1>::v; };" + BODY % "x[0] = A<0>::v;",
        "excessive",
    ),
    "shared memory": (BODY % "__shared__ int s[1 << 20]; s[threadIdx.x] = 1; x[0] = s[3];", "too much shared data"),
    "assembly": (BODY % 'asm volatile("garbage.op %r1;");', "garbage"),
    "constexpr": (
        "__device__ constexpr int f() { int s = 0; for (long i = 0;; ++i) s ^= 1; return s; }"
        + BODY % "constexpr int v = f(); x[0] = v;",
        "constant value",
    ),
}


class Counting:
    """A thread that counts: if this process stood still, it would not."""

    def __enter__(self) -> Self:
        self.count = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.001):
            self.count += 1


@pytest.mark.parametrize("name", DEEP)
def test_a_source_that_crashes_the_compiler_costs_its_job_only(name: str, make: Callable[..., Compiler]) -> None:
    """The error names the signal; or it has compiled, or taken too long, by the compiler's version."""
    compiler = make(CompileLimits(cpu_s=4, idle=False))
    with Counting() as counting:
        error = compiler.submit(CompileJob(DEEP[name], ARCHITECTURE), time.monotonic() + DEADLINE_S).exception()
        assert counting.count
    assert error is None or (isinstance(error, errors.CompilationFailed) and error.signal in {"SIGSEGV", "SIGXCPU"})
    assert name != "unary minus" or error, "one of them crashes every version"
    assert done(compiler, CompileJob(KERNEL, ARCHITECTURE)).code


@pytest.mark.parametrize("name", ENDLESS_SOURCES)
def test_a_source_without_end_is_stopped_by_its_processor_time(name: str, make: Callable[..., Compiler]) -> None:
    """However busy the machine is; the caller's process goes on meanwhile."""
    compiler = make(SHORT)
    with Counting() as counting:
        error = failed(compiler, CompileJob(ENDLESS_SOURCES[name], ARCHITECTURE))
        assert counting.count
    assert error.signal in {"SIGXCPU", "SIGSEGV"}
    assert error.signal != "SIGXCPU" or "2 s of processor time are the most" in error.message


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_source_is_answered_with_messages(name: str, make: Callable[..., Compiler]) -> None:
    """They are bounded, and have no line of the source."""
    source, says = WRONG[name]
    error = failed(make(), CompileJob(source, ARCHITECTURE))
    assert says in error.log
    assert len(error.log) <= 16384
    assert not any(line.startswith(" ") for line in error.log.split("\n"))
    assert error.signal == ""
    assert not error.maybe_executed


def test_code_for_memory_that_no_gpu_has_is_only_code(make: Callable[..., Compiler]) -> None:
    """Whoever loads it is refused by the driver."""
    source = "__device__ char a[1ull << 46];" + BODY % "a[0] = 1;"
    assert done(make(), CompileJob(source, ARCHITECTURE)).code


@pytest.mark.parametrize("confined", [True, False])
def test_a_source_reads_no_file_of_the_machine(
    make: Callable[..., Compiler], tmp_path: Path, *, confined: bool
) -> None:
    """Confined it cannot open one, by no trick of the preprocessor, and waits for none; else its lines do not leave."""
    secret = tmp_path / "secret"
    secret.write_text("correct horse battery staple\n", encoding="utf-8")
    os.mkfifo(tmp_path / "fifo")
    compiler = make(confined=confined)
    sources = [
        f'#include "{secret}"\n',
        f"#include <{secret}>\n",
        f'#define FILE "{secret}"\n#include FILE\n',
        f'#include "../../../../../../..{secret}"\n',
        f'#if __has_include("{secret}")\n#error it is there\n#endif\n',
    ]
    for source in sources:
        job = CompileJob(source + KERNEL, ARCHITECTURE)
        if confined and "__has_include" in source:
            done(compiler, job)
            continue
        error = failed(compiler, job)
        assert "correct horse battery staple" not in error.log + error.message
        assert not confined or "cannot open source file" in error.log
    if confined:
        fifo = CompileJob(f'#include "{tmp_path}/fifo"\n' + KERNEL, ARCHITECTURE)
        assert "cannot open source file" in failed(compiler, fifo).log


def test_a_process_that_is_shut_in_reaches_nothing_else(tmp_path: Path) -> None:
    """No file but those named, no socket, no process, no limit; what a compiler does still works."""
    if not confines():
        pytest.skip("this kernel has no Landlock, or the architecture's system calls are not known")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "a.h").write_bytes(b"")
    (tmp_path / "outside").write_bytes(b"secret")
    command = [sys.executable, str(PROGRAMS / "shut_in.py"), str(tmp_path / "inside"), str(tmp_path / "outside")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    found = dict(line.split() for line in result.stdout.splitlines() if line != "end")
    works = {"read-inside", "list-inside", "thread", "ask-limit"}
    assert {name for name, outcome in found.items() if outcome == "done"} == works, result.stderr
    assert len(found) == 25
    assert result.returncode == -signal.SIGABRT
    assert (tmp_path / "outside").read_bytes() == b"secret"


# --- time, and ends --------------------------------------------------------------------------------------------------


def test_the_deadline_holds(make: Callable[..., Compiler]) -> None:
    """The answer comes with it; the bound is documented, the margin here is for a busy machine."""
    began_s = time.monotonic()
    error = make().submit(CompileJob(ENDLESS, ARCHITECTURE), time.monotonic() + 1.0).exception(DEADLINE_S)
    assert 1.0 <= time.monotonic() - began_s < 1.0 + PROMISE_S
    assert isinstance(error, errors.DeadlineExceeded)
    assert "the compiler was stopped after" in error.message
    assert "less a quarter of a second" in error.message, "the limit of a client's source ends before its deadline"
    assert not error.maybe_executed


def test_a_process_that_is_killed_costs_its_job_only(make: Callable[..., Compiler]) -> None:
    """As by the kernel when memory runs out."""
    compiler = make()
    future = begun(compiler, CompileJob(ENDLESS, ARCHITECTURE))
    (child,) = psutil.Process().children()
    child.kill()
    error = future.exception(DEADLINE_S)
    assert isinstance(error, errors.CompilationFailed)
    assert error.signal == "SIGKILL"
    assert "says nothing of the source" in error.message
    assert done(compiler, CompileJob(KERNEL, ARCHITECTURE)).code


def test_a_compiler_ends_with_its_worker() -> None:
    """However that ends; the kernel sees to it."""
    with Program(PROGRAMS / "compiles_for_ever.py") as worker:
        pids = [int(word) for word in worker.hear()]
        with Watched(pids) as watched:
            worker.kill()
            assert watched.left(DEADLINE_S) == []


def test_closing_ends_what_runs_and_what_waits(make: Callable[..., Compiler]) -> None:
    """Typed, and no process is left."""
    compiler = make()
    futures = [begun(compiler, endless(number), number) for number in range(2)]
    futures.append(compiler.submit(CompileJob(KERNEL, ARCHITECTURE), time.monotonic() + DEADLINE_S))
    compiler.close()
    compiler.close()
    assert [type(each.exception(0)) for each in futures] == [errors.Cancelled] * 3
    with pytest.raises(errors.Cancelled):
        compiler.submit(CompileJob(KERNEL, ARCHITECTURE), time.monotonic() + DEADLINE_S)


def test_two_run_at_a_time_and_the_others_wait(make: Callable[..., Compiler], monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded number; one that waits can be cancelled, and is answered at its deadline."""
    monkeypatch.setattr(turns, "MAX_JOBS", 8)
    compiler = make()
    running = [begun(compiler, endless(0)), begun(compiler, endless(1), "another")]
    late = compiler.submit(CompileJob(KERNEL, ARCHITECTURE), time.monotonic() + 0.3)
    unwanted = compiler.submit(CompileJob(KERNEL + "//", ARCHITECTURE), time.monotonic() + DEADLINE_S)
    third = compiler.submit(endless(2), time.monotonic() + DEADLINE_S)
    with pytest.raises(errors.Overloaded, match="4 sources of this client with 0 MiB, and 1 of others"):
        compiler.submit(CompileJob(KERNEL, ARCHITECTURE), time.monotonic() + DEADLINE_S)
    others = compiler.submit(CompileJob(KERNEL, ARCHITECTURE), time.monotonic() + DEADLINE_S, "another")
    assert unwanted.cancel()
    assert third.cancel()
    assert isinstance(late.exception(DEADLINE_S), errors.DeadlineExceeded)
    assert len(psutil.Process().children()) == 2
    assert not others.done()
    for child in psutil.Process().children():
        child.kill()
    assert all(each.exception(DEADLINE_S) for each in running)
    assert others.result(DEADLINE_S).code.code
    assert done(compiler, CompileJob(KERNEL, ARCHITECTURE)).code
    assert len(compiler._turns) == 0


def test_a_job_that_nobody_waits_for_any_more_is_stopped(make: Callable[..., Compiler]) -> None:
    """Not as long as another caller waits for an equal one, which has no process of its own."""
    compiler = make()
    first = begun(compiler, endless(0))
    second = compiler.submit(endless(0), time.monotonic() + DEADLINE_S, "another")
    (child,) = psutil.Process().children()
    with Watched([child.pid]) as watched:
        assert first.cancel()
        late = compiler.submit(endless(0), time.monotonic() + 0.3, "a third").exception(DEADLINE_S)
        assert isinstance(late, errors.DeadlineExceeded)
        assert "at work after" in late.message
        assert [each.pid for each in psutil.Process().children()] == [child.pid]
        assert not second.done()
        assert second.cancel()
        assert watched.left(DEADLINE_S) == []
    assert done(compiler, CompileJob(KERNEL, ARCHITECTURE)).code


def test_equal_jobs_of_several_callers_are_done_once(
    make: Callable[..., Compiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gets the result; an error as an exception of its own."""
    made: list[Job] = []

    class Counted(CompilerProcess):
        def __init__(self, job: Job, *arguments: Any, **named: Any) -> None:
            made.append(job)
            super().__init__(job, *arguments, **named)

    monkeypatch.setattr(compiler_module, "CompilerProcess", Counted)
    compiler = make()
    job, wrong = CompileJob(KERNEL, ARCHITECTURE), CompileJob("wrong", ARCHITECTURE)
    futures = [compiler.submit(job, time.monotonic() + DEADLINE_S, owner) for owner in range(8)]
    failing = [compiler.submit(wrong, time.monotonic() + DEADLINE_S, owner) for owner in range(8)]
    assert len({id(each.result(DEADLINE_S).code) for each in futures}) == 1
    assert len({id(each.exception(DEADLINE_S)) for each in failing}) == 8
    assert sorted(each.source for each in made if isinstance(each, CompileJob)) == sorted([KERNEL, "wrong"])


def test_an_owner_waits_for_no_job_of_another(make: Callable[..., Compiler]) -> None:
    """However many slow ones that one has: it has one process."""
    compiler = make()
    running = begun(compiler, endless(0))
    many = [compiler.submit(endless(9 + n), time.monotonic() + DEADLINE_S) for n in range(50)]
    few = [
        compiler.submit(CompileJob(KERNEL + "//" * n, ARCHITECTURE), time.monotonic() + DEADLINE_S, "another")
        for n in range(2)
    ]
    assert all(each.result(DEADLINE_S).code.code for each in few)
    assert not any(each.done() for each in (running, *many))
    assert settled(lambda: len(psutil.Process().children()) == 1)


def test_the_bytes_of_sources_that_wait_are_bounded(
    make: Callable[..., Compiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a typed refusal."""
    monkeypatch.setattr(turns, "MAX_JOBS_BYTES", 100)
    with pytest.raises(errors.Overloaded):
        make().submit(CompileJob(KERNEL + " " * 100, ARCHITECTURE), time.monotonic() + DEADLINE_S)


def test_without_a_compiler_the_error_says_how_to_install_it() -> None:
    """No process is started."""
    compiler = Compiler(None, None, LIMITS, confined=True)
    with pytest.raises(errors.Unsupported, match=r"pip install 'atomr-mp\[nvrtc13\]'"):
        compiler.submit(CompileJob(KERNEL, ARCHITECTURE), time.monotonic() + DEADLINE_S)
    compiler.close()


# --- what the process has --------------------------------------------------------------------------------------------


def test_the_process_has_limits_and_nothing_of_its_workers(
    make: Callable[..., Compiler], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No descriptor but its pipes, no variable that may hold a secret, the processor only when it is idle."""
    monkeypatch.setenv("ATOMR_MP_SERVE_TOKEN", "secret")
    with (tmp_path / "open").open("wb") as opened:
        os.set_inheritable(opened.fileno(), True)
        compiler = make(CompileLimits(cpu_s=30, memory_bytes=3 * 2**30, idle=True))
        future = begun(compiler, CompileJob(ENDLESS, ARCHITECTURE))
        (child,) = psutil.Process().children()
        # Its lifeline is the last thing that it starts before it compiles.
        assert settled(lambda: child.num_threads() > 1)
        kinds = {str(Path(f"/proc/{child.pid}/fd/{each}").readlink()).partition(":")[0] for each in range(4)}
        assert kinds == {"pipe"}
        assert child.num_fds() <= 5
        assert os.sched_getscheduler(child.pid) == os.SCHED_IDLE
        limits = {
            resource.RLIMIT_CPU: (30, 31),
            resource.RLIMIT_AS: (3 * 2**30, 3 * 2**30),
            resource.RLIMIT_FSIZE: (0, 0),
            resource.RLIMIT_CORE: (1, 1),
        }
        assert {kind: resource.prlimit(child.pid, kind) for kind in limits} == limits
        assert "secret" not in child.environ().values()
        child.kill()
        assert future.exception(DEADLINE_S)


def test_memory_is_bounded(make: Callable[..., Compiler]) -> None:
    """Whether the compiler notices it or crashes."""
    many = "".join(f"__global__ void k{n}(float* x) {{ x[{n}] = sinf(x[0]); }}\n" for n in range(20_000))
    limits = CompileLimits(cpu_s=60, memory_bytes=350 * 2**20, idle=False)
    error = make(limits).submit(CompileJob(many, ARCHITECTURE), time.monotonic() + DEADLINE_S).exception()
    assert isinstance(error, errors.CompilationFailed | errors.Unsupported), error


LIES: Final = {
    "nothing": "",
    "half": "out(b'\\x10\\0\\0\\0half')",
    "rubbish": "out(b'\\x04\\0\\0\\0abcd')",
    "too long": "out(b'\\xff\\xff\\xff\\xff' + b'x' * 100)",
    "endless": "out(b'\\xff\\xff\\xff\\x7f')\nwhile True: out(b'x' * 65536)",
    "other names": "say(['done', b'code', {'other': 'k'}, ''])",
    "bad name": "say(['done', b'code', {'k': 'a b'}, ''])",
    "escape": "say(['refused', 'x\\x1b[31m', 'a(1): error: \\x1b[31m'])",
    "closes": "os.close(1)\ntime.sleep(60)",
    "prints": "import sys\nsys.stderr.write('\\x1b[31m' * 100000)",
    "trailing": "out(b'\\x01\\0\\0\\0\\xc0 more')",
}


@pytest.mark.parametrize("lie", LIES)
def test_a_process_that_was_taken_over_is_not_believed(
    lie: str, toolkit: Toolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it answers, it is a typed error with printable text, by the deadline."""
    head = "import msgspec, os, time\ndef out(data): os.write(1, data)\n"
    head += "def say(answer):\n data = msgspec.msgpack.encode(answer)\n out(len(data).to_bytes(4, 'little') + data)\n"
    (tmp_path / "liar.py").write_text(head + LIES[lie], encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(compiler_process, "MODULE", "liar")
    job = check(CompileJob(KERNEL, ARCHITECTURE, names=("k",)))
    with (
        CompilerProcess(job, toolkit, LIMITS, confined=True) as process,
        pytest.raises(errors.CompilationFailed) as raised,
    ):
        process.answer()
    assert (raised.value.message + raised.value.log).replace("\n", "").isprintable()
    assert len(raised.value.message) < 8192


def test_a_library_that_cannot_be_loaded_is_unsupported(toolkit: Toolkit, tmp_path: Path) -> None:
    """In words, and nothing is compiled."""
    (tmp_path / "libnvrtc.so.13").write_bytes(b"not a library")
    broken = Toolkit(toolkit.version, tmp_path / "libnvrtc.so.13", toolkit.builtins, None, toolkit.includes, "")
    job = check(CompileJob(KERNEL, ARCHITECTURE))
    with (
        CompilerProcess(job, broken, LIMITS, confined=True) as process,
        pytest.raises(errors.Unsupported, match="the compiler cannot be used here: OSError"),
    ):
        process.answer()

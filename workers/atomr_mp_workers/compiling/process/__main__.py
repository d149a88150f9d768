"""The compiler's process: compiles one source or makes one link, and ends. Started by `compiler_process`.

Its only argument is its parent's pid. It reads a `Setup`, loads the libraries, gives up what it does not need, and only
then reads the job. What it answers is written to the descriptor that was its standard output.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from atomr_mp import output
from atomr_mp_workers.compiling import exchange
from atomr_mp_workers.compiling.exchange import Answer, Setup, UnfitAnswer
from atomr_mp_workers.compiling.jobs import CompileJob, LinkJob
from atomr_mp_workers.compiling.process import landlock, own_limits, seccomp
from atomr_mp_workers.compiling.process.nvjitlink import NvJitLink
from atomr_mp_workers.compiling.process.nvrtc import Nvrtc


def main() -> NoReturn:
    """Do one job, and end without what Python or a library does at its end."""
    own_limits.die_with(int(sys.argv[1]))
    answers = os.dup(1)
    output.protect()
    os.dup2(2, 1)  # whatever a library prints is no answer
    try:
        answer = _work()
    except (OSError, AttributeError) as error:  # of a library that cannot be loaded, or has no such function
        answer = UnfitAnswer(f"{type(error).__name__}: {error}"[:2000])
    message = memoryview(exchange.framed(exchange.ANSWER.encode(answer)))
    while message:
        message = message[os.write(answers, message) :]
    os._exit(0)


def _work() -> Answer:
    setup = exchange.SETUP.decode(_read(exchange.MAX_SETUP_BYTES))
    own_limits.impose(setup)
    tool = _linker(setup) if setup.links else Nvrtc(setup.nvrtc, setup.builtins)
    exchange.JOB.get_ready()
    if setup.confined:
        if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208 - Path is no shorter
            raise OSError("a library has started threads, which would not be confined")
        landlock.restrict_to_reading(map(Path, setup.includes))
        seccomp.restrict_calls()
    job = exchange.JOB.decode(_read(exchange.MAX_JOB_BYTES))
    own_limits.end_with(0)
    if isinstance(tool, Nvrtc):
        assert isinstance(job, CompileJob)
        return tool.compile(job, setup.includes)
    assert isinstance(job, LinkJob)
    return tool.link(job)


def _linker(setup: Setup) -> NvJitLink:
    return NvJitLink(setup.nvjitlink, int(setup.nvjitlink.rpartition(".so.")[2].partition(".")[0]))


def _read(most: int) -> bytes:
    """Read one message.

    Raises:
        OSError: It is too long, or the worker has ended.
    """
    length = int.from_bytes(_exactly(exchange.LENGTH_BYTES), "little")
    if length > most:
        raise OSError(f"a message of {length} bytes is too long")
    return _exactly(length)


def _exactly(length: int) -> bytes:
    parts: list[bytes] = []
    while length:
        part = os.read(0, min(length, 2**20))
        if not part:
            raise OSError("the worker has ended")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    main()

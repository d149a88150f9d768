"""Several client processes of one worker at the same time, each with its own window of calls in flight."""

from __future__ import annotations

import contextlib
import subprocess
import sys

from benchmarks.contestant import Contestant
from benchmarks.sizes import Sizes


def clients(contestant: Contestant, sizes: Sizes) -> dict[str, float]:
    """Return the sum of the clients' rates, if there can be several."""
    if not contestant.joinable:
        return {}
    contestant.start(1)
    command = [
        *(sys.executable, "-m", "benchmarks.processes.client_process", contestant.name, str(contestant.directory)),
        *(str(sizes.clients_s), str(sizes.window), str(sizes.payload_bytes)),
    ]
    with contextlib.ExitStack() as stack:
        programs = []
        for _ in range(sizes.clients):
            program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            programs.append(stack.enter_context(program))
            stack.callback(program.kill)
        for program in programs:
            if _line(program) != "ready":
                raise RuntimeError("a client did not start")
        for program in programs:
            assert program.stdin is not None
            program.stdin.write("go\n")
            program.stdin.flush()
        rate = sum(float(_line(program)) for program in programs)
        # None leaves before all have counted: a session's end would disturb the others.
        for program in programs:
            program.communicate()
    return {"clients": rate}


def _line(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()

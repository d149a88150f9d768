"""perf_analyzer against our server, and what it reads there of the parts of a request's time."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Final

from oip_clients import environments, servers

SECONDS: Final = 3

WAYS: Final = {
    "HTTP, one after the other": ("-i", "http", "--sync"),
    "HTTP, asynchronous": ("-i", "http", "--async"),
    "gRPC, one after the other": ("-i", "grpc", "--sync"),
    "gRPC, asynchronous": ("-i", "grpc", "--async"),
    "gRPC, a stream": ("-i", "grpc", "--async", "--streaming"),
}

SERVER: Final = re.compile(
    r"Inference count: (\d+)\s+Execution count: (\d+)\s+Successful request count: (\d+)\s+"
    r"Avg request latency: (\d+) usec \(overhead (\d+) usec \+ queue (\d+) usec \+ compute input (\d+) usec \+ "
    r"compute infer (\d+) usec \+ compute output (\d+) usec\)"
)
CLIENT: Final = re.compile(r"Request count: (\d+).*?Avg latency: (\d+) usec", re.DOTALL)


def run() -> list[str]:
    """Ask in each way for a few seconds; return what is wrong."""
    binary = environments.HOME / "perf" / "bin" / "perf_analyzer"
    libraries = ":".join(map(str, environments.perf_libraries()))
    wrong = []
    with servers.ours("client_models.py:ClientModels", "client_models.toml"):
        for way, options in WAYS.items():
            port = servers.HTTP if options[1] == "http" else servers.GRPC
            command = [str(binary), "-m", "simple", "-u", f"localhost:{port}", *options, "--concurrency-range", "2"]
            command += ["--measurement-interval", str(SECONDS * 1000), "--max-trials", "3", "-s", "999"]
            done = subprocess.run(
                command,
                env={**os.environ, "LD_LIBRARY_PATH": libraries},
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            why = judged(done.stdout) if done.returncode == 0 else f"status {done.returncode}: {done.stderr[-500:]}"
            print(f"  {way}: {why or 'as it should be'}", flush=True)
            if why:
                wrong.append(f"perf_analyzer, {way}: {why}")
    return wrong


def judged(told: str) -> str:
    """Return the mistake in a report; empty for a good one.

    Parts are rounded down to microseconds, each; the server's counts are read a little after the client's.
    """
    client, server = CLIENT.search(told), SERVER.search(told)
    if client is None or server is None:
        return f"there are no figures in: {told[-800:]}"
    requests, latency = map(int, client.groups())
    inferences, executions, successes, total, *parts = map(int, server.groups())
    if not requests:
        return "there was no request"
    if not inferences == successes >= executions > 0:
        return f"{inferences} inferences, {executions} executions, {successes} successes"
    if abs(successes - requests) > max(10, requests // 5):
        return f"the client counts {requests} requests, and the server {successes}"
    if sum(parts) > total + len(parts) or total > latency:
        return f"parts of {parts} us, a request of {total} us in the server, and of {latency} us for the client"
    return ""

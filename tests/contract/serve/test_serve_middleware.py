from __future__ import annotations

import functools
import gzip
import json
import subprocess
from pathlib import Path

import pytest

from tests.serving import CLI, Server
from tests.support import ACTORS, DEADLINE_S, Ledger, settled

pytest.importorskip("httptools")
pytest.importorskip("uvloop")
pytest.importorskip("starlette")

GZIP = "starlette.middleware.gzip:GZipMiddleware"
FILE = ACTORS.parent / "programs" / "middleware.py"


def test_own_middleware_sees_every_request_and_every_answer(ledger: Ledger) -> None:
    """In each front end; calls, errors and streams pass, and so do failures of its own."""
    options = (
        "--middleware",
        f"{FILE}:marking",
        "--middleware",
        f"{FILE}:refusing",
        "--middleware",
        GZIP,
        "--workers",
        "2",
    )
    with Server(ledger, *options) as server:
        pids = {str(pid) for pid in server.front_ends()}
        for answer, status in (
            (server.call("Served.length", ["word"]), 200),
            (server.call("Served.length", [1]), 422),
            (server.call("Served.count", [3]), 200),
            (server.ask("GET", "/health/live", token=""), 200),
            (server.ask("GET", "/openapi.json", token=""), 401),
            (server.call("Served.length", ["word"], x_how="refuse"), 402),
        ):
            assert (answer.status, answer.headers["x-mark"] in pids) == (status, True)
        document = server.ask("GET", "/openapi.json", headers={"accept-encoding": "gzip"})
        assert json.loads(gzip.decompress(document.body))["openapi"] == "3.1.0"
        unanswered = (
            ("raise", "raised on purpose"),
            ("silence", "has not answered"),
            ("cancel", "CancelledError"),
            ("exit", "SystemExit: 3"),
        )
        for how, said in unanswered:
            failed = server.call("Served.length", ["word"], x_how=how)
            assert (failed.status, failed.error["code"], failed.error["maybe_executed"]) == (
                500,
                "internal_error",
                True,
            )
            assert settled(functools.partial(tells, server, said))
        late = server.call("Served.length", ["word"], x_how="raise-late")
        assert (late.status, late.json()) == (200, 4)
        assert server.call("Served.length", ["word"]).json() == 4
        assert {str(pid) for pid in server.front_ends()} == pids
        counted = f'atomr_mp_http_requests_total{{route="other",status="500"}} {len(unanswered)}.0'
        assert settled(lambda: counted in server.ask("GET", "/metrics").body.decode())


def tells(server: Server, said: str) -> bool:
    """Return whether a server's log has a text."""
    return said in server.log()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (f"{FILE}", "module:function"),
        (f"{FILE}:missing", "no function 'missing'"),
        (f"{FILE}:NOT_CALLABLE", "no function 'NOT_CALLABLE'"),
        ("/nonexistent/file.py:wrap", "there is no file"),
        ("no_such_module:wrap", "no_such_module"),
        ("broken.py:wrap", "SystemExit"),
    ],
)
def test_middleware_that_cannot_be_imported_is_refused_in_a_line(
    ledger: Ledger, tmp_path: Path, target: str, said: str
) -> None:
    """Before anything is started."""
    (tmp_path / "broken.py").write_text("print('x')\nraise SystemExit(3)\n")
    options = ("--middleware", target, "--run-dir", ledger.run_dir(), "--port", "0")
    done = subprocess.run(
        [*CLI, "serve", *map(str, options)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={"PYTHONPATH": str(ACTORS.parents[1])},
    )
    assert (done.returncode, said in done.stderr, done.stderr.count("\n")) == (1, True, 1), done

from __future__ import annotations

import fcntl
import functools
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import atomr_mp
from tests.serving import Server, ask, children, command_line
from tests.support import ACTORS, DEADLINE_S, Ledger, settled
from tests.waiting import readable

pytest.importorskip("httptools")

SERVED = f"{ACTORS}/served.py:Served"
TOLD = f"{ACTORS}/telling.py:Telling"


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """Of one test."""
    with Ledger() as counting:
        yield counting


def events(server: Server) -> list[dict[str, Any]]:
    """Return a server's log as JSON: every line is an object."""
    whole, _, _ = server.log().rpartition("\n")  # the last line may be in the middle of being written
    return [json.loads(line) for line in whole.splitlines()]


def named(server: Server, *names: str) -> list[dict[str, Any]]:
    """Return the events of these names."""
    return [event for event in events(server) if event["event"] in names]


def has(server: Server, name: str, count: int) -> bool:
    """Return whether a server has logged so many events of this name."""
    return len(named(server, name)) == count


def has_ended(server: Server, pid: int) -> bool:
    """Return whether a server has logged that a front end has ended."""
    return any(event["pid"] == pid for event in named(server, "front_end_ended"))


def has_stray(server: Server, text: str) -> bool:
    """Return whether a server has logged a text as another process's."""
    return any(text in event["text"] for event in named(server, "stderr"))


def device_log(ledger: Ledger) -> str:
    """Return what the worker has written."""
    return (ledger.run_dir("run") / "device-0.log").read_text(encoding="utf-8")


def test_what_a_method_raises_is_told_whole_once_and_then_counted(ledger: Ledger) -> None:
    """In the server's log with the request's id, and in the device's; users' data forges no line of either."""
    with Server(ledger, actor=TOLD) as server:
        answers = [
            server.call("Telling.fail", [f"{n}\nforged\x1b[2J\u2028{'x' * 3000}"], x_request_id=f"id-{n}")
            for n in range(5)
        ]
        assert all(answer.status == 500 for answer in answers)
        assert all("Traceback" not in answer.body.decode() for answer in answers)
        of_device = device_log(ledger)
        assert server.stop() == 0
        log = server.log()
    for found in (log, of_device):
        assert found.count("Telling.fail raised builtins.ValueError at ") == (2 if found is log else 1)
        assert found.count("  | Traceback (most recent call last):") == 1
        assert ", in fail" in found
        assert "\x1b" not in found
        assert "\nforged" not in found
        assert max(map(len, found.splitlines())) < 1100
    assert "request id-0, device 0 generation 1" in log
    assert "… 4 more of the same: Telling.fail raised builtins.ValueError" in log


@pytest.mark.parametrize(("how", "seen"), [("type", 1), ("off", 0)])
def test_the_logs_show_no_more_of_exceptions_than_they_may(ledger: Ledger, how: str, seen: int) -> None:
    """The type and the place without a text, or nothing; the device's log too."""
    with Server(ledger, "--log-errors", how, actor=TOLD) as server:
        assert server.call("Telling.fail", ["a secret"]).status == 500
        assert server.call("Telling.noted", ["last"]).status == 200
        assert settled(lambda: "[device 0] noted last" in server.log())
        for found in (server.log(), device_log(ledger)):
            assert found.count("raised builtins.ValueError at ") == seen
            assert "secret" not in found
            assert "Traceback" not in found


def wait_probed(ledger: Ledger) -> None:
    """Wait until the server's first probes are answered: they wait for NumPy, and would count as running."""
    with atomr_mp.connect(run_dir=ledger.run_dir("run")) as pool:

        def probed() -> bool:
            [device] = pool.status().devices
            return device.completed >= 2 and device.running == 0

        assert settled(probed, DEADLINE_S)


def test_a_servers_log_tells_its_story_in_lines_of_json(ledger: Ledger) -> None:
    """Each event is a line: of the pool, of the workers' output and of each request, with its outcome."""
    with Server(ledger, "--access-log", "--log-format", "json", actor=TOLD) as server:
        wait_probed(ledger)
        assert server.call("Telling.noted", ["a\tb"], x_request_id="one").status == 200
        assert b"error" in server.call("Telling.breaks", [2], x_request_id="two").body
        assert server.call("Telling.crash", x_request_id="three").status == 500
        assert settled(lambda: len(named(server, "device_ready")) == 2, DEADLINE_S), server.log()
        by_id = {event["id"]: event for event in named(server, "request")}
        assert {name: (event["status"], event["outcome"]) for name, event in by_id.items()} == {
            "one": (200, "ok"),
            "two": (200, "actor_failed"),
            "three": (500, "worker_lost"),
        }
        one = by_id["one"]
        assert (one["method"], one["device"], one["generation"]) == ("Telling.noted", 0, 1)
        assert one["bytes_in"] > 0 < one["bytes_out"]
        assert by_id["two"]["parts"] == 2
        [lost] = named(server, "device_end")
        assert (lost["device"], lost["generation"], lost["running"], lost["signal"]) == (0, 1, 1, 11)
        assert "device-0.log" in lost["text"]
        assert named(server, "device_ready")[1]["away_s"] > 0
        assert settled(lambda: any(event["output"] == "noted a b" for event in named(server, "output")))
        stacks = device_log(ledger)
        assert "Fatal Python error: Segmentation fault" in stacks
        assert re.search(r"File .*telling.py., line \d+ in crash", stacks)
        assert server.stop() == 0
        assert named(server, "device_planned_end")


def test_whatever_a_method_ends_with_is_told_with_its_place_or_its_type(ledger: Ledger) -> None:
    """An exception of any class and of any text, and a result of any type that cannot be sent; each one counts once."""
    methods = ("Telling.raises", "Telling.raises_awaited", "Telling.raises_streaming")
    with Server(ledger, "--log-format", "json", actor=TOLD) as server:
        raised, unsendable = server.call("Telling.kinds").json()
        for method in methods:
            for kind in (*raised, *unsendable):
                answer = server.call(method, [kind], x_request_id=kind.replace(" ", "-"))
                assert b"error" in answer.body
        of_device = device_log(ledger)
        assert server.stop() == 0
        all_told, all_again = named(server, "raised"), named(server, "raised_again")
    assert "unknown place" not in of_device
    for method in methods:
        told = [event for event in all_told if event["method"] == method]
        more = sum(event["more"] for event in all_again if event["method"] == method)
        assert len(told) + more == len(raised) + len(unsendable)
        by_id = {event["id"]: event for event in told}
        for kind in ("MemoryError", "RecursionError", "KeyboardInterrupt", "GeneratorExit", "ExceptionGroup"):
            assert by_id[kind]["exception"] == f"builtins.{kind}"
            assert f"{method} raised builtins.{kind} at " in of_device
        for event in told:
            assert "exception" not in event or re.search(r"telling\.py:\d+ in ", event["place"]), event
        assert by_id["a-Decimal"]["returned"] == "decimal.Decimal"
        assert "decimal.Decimal, which cannot be sent" in by_id["a-Decimal"]["text"]
        assert any("a decimal.Decimal cannot be sent" in line for line in by_id["a-Decimal"]["traceback"])
        assert f"{method} returned a value of type decimal.Decimal, which cannot be sent" in of_device
        assert by_id["LibraryError"]["code"] == "library_error"


def test_a_joined_pools_story_is_told_too(ledger: Ledger) -> None:
    """Once, by the parent, and without its past; and without its workers' output if that is not wanted."""
    with (
        ledger.start(TOLD, run_dir="run") as pool,
        Server(ledger, "--workers", "2", "--no-follow", "--log-format", "json", actor=None) as server,
    ):
        assert server.call("Telling.noted", ["a"]).status == 200
        pool.restart(0)
        assert settled(lambda: bool(named(server, "device_planned_end")))
        assert settled(lambda: [event["generation"] for event in named(server, "device_ready")] == [2])
        assert not named(server, "output")


def test_a_lost_context_leaves_its_stacks_and_a_deadly_request_is_named(ledger: Ledger) -> None:
    """The stacks of the method that waited then; and a request that ends workers, by its method and fingerprint."""
    with Server(ledger, "--gpus", "1", actor=TOLD) as server, ledger.gate("gate") as gate:
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(server.call, "Telling.wait_at", [gate.path])
            gate.wait()
            poisoned = server.call("Telling.poison").error
            assert poisoned["code"] == waiting.result(DEADLINE_S).error["code"] == "context_poisoned"
        assert "atomr-mp logs 0" in poisoned["message"]
        stacks = device_log(ledger)
        assert re.search(r"Thread 0x\w+ .*\n(  File .*\n)*  File .*telling.py., line \d+ in wait_at", stacks)
        codes = [server.call("Telling.crash").error["code"] for _ in range(3)]
        assert codes[0] == "worker_lost"
        assert codes[-1] == "poison_request"
        assert settled(lambda: "Telling.crash with the arguments of fingerprint" in server.log()), server.log()


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_log_that_nobody_reads_costs_lines_which_are_counted(ledger: Ledger, form: str) -> None:
    """Requests are answered meanwhile; once somebody reads, the log says how many lines are missing."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    options = ("--access-log", "--log-format", form, "--workers", "1")
    try:
        with Server(ledger, *options, actor=TOLD, stderr=writer) as server:
            os.close(writer)
            writer = -1
            path = f"/{'x' * 190}"
            with server.client() as connection:
                for _ in range(1500):
                    assert ask(connection, "GET", path, None, {"authorization": f"Bearer {server.token}"}).status == 404
            seen = b""
            while b"could not be written here" not in seen:
                assert readable([reader], DEADLINE_S), seen[-1000:]
                seen += os.read(reader, 65536)
                server.ask("GET", "/health/live")
            assert server.ask("GET", "/health/live").status == 200
            lost = sum(int(count) for count in re.findall(rb"(\d+) lines? could not be written here", seen))
            assert 0 < lost < 1500
            reading = threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(reader, 65536), b"")])
            reading.start()
            assert server.stop() == 0
        reading.join(DEADLINE_S)
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)


def test_files_that_cannot_be_written_are_told_once_and_cost_nothing_else(ledger: Ledger) -> None:
    """An event log and a device's log whose places are taken: calls go on, and standard error has all events."""
    with Server(ledger, "--log-format", "json", "--set", "max_suspicions=0", actor=TOLD) as server:
        run_dir = ledger.run_dir("run")
        wait_probed(ledger)
        for name in ("events.jsonl", "device-0.log"):
            (run_dir / name).unlink()
            (run_dir / name).mkdir()
        for generation in (1, 2):
            assert server.call("Telling.end", [9]).status == 500
            told = f"device 0 generation {generation}: ended: killed by SIGKILL (signal 9), 1 request was running"
            assert settled(functools.partial(has_stray, server, told), DEADLINE_S), server.log()
            assert settled(lambda: server.call("Telling.noted", ["a"]).status == 200, DEADLINE_S)
        for name in ("events.jsonl", "device-0.log"):
            (run_dir / name).rmdir()
        assert server.call("Telling.end", [9]).status == 500
        assert settled(lambda: bool(named(server, "device_end")), DEADLINE_S), server.log()
        texts = [event["output"] for event in named(server, "stderr")]
        for name in ("events.jsonl", "device-0.log"):
            assert sum(f"{name} cannot be written: " in text for text in texts) == 1, texts
            assert sum(text.endswith(f"{name} can be written again") for text in texts) == 1, texts


def test_a_lost_pool_is_told_once(ledger: Ledger) -> None:
    """Neither by each front end, nor not at all where the server has only joined the pool."""
    with (
        ledger.start(TOLD, run_dir="run") as pool,
        Server(ledger, "--workers", "3", "--log-format", "json", actor=None) as server,
    ):
        assert server.call("Telling.noted", ["a"]).status == 200
        pool.close()
        assert settled(lambda: server.ask("GET", "/health/ready").status == 503, DEADLINE_S)
        with ledger.start(TOLD, run_dir="run"):
            assert settled(lambda: bool(named(server, "joined")), DEADLINE_S), server.log()
            assert settled(lambda: server.ask("GET", "/health/ready").status == 200, DEADLINE_S)
            assert server.stop() == 0
            assert len(named(server, "lost")) == 1
    assert not [event for event in events(server) if "is lost" in event["text"] and event["event"] != "lost"]


def test_no_answer_that_refuses_is_logged_as_ok(ledger: Ledger) -> None:
    """The outcome of an answer says what was wrong, for every status from 400 on, also while the server ends."""
    with Server(ledger, "--access-log", "--drain-delay", "2", "--log-format", "json", actor=TOLD) as server:
        for path in ("/none", "/call/No.method", "/metrics", "/openapi.json"):
            for verb in ("GET", "POST"):
                server.ask(verb, path, token="wrong")
        server.call("No.method")
        server.call("Telling.fail", ["a"])
        server.process.send_signal(signal.SIGTERM)
        assert settled(lambda: server.ask("GET", "/health/ready").status == 503, DEADLINE_S)
        server.process.wait(DEADLINE_S)
        answers = named(server, "request")
    refused = [event for event in answers if event["status"] >= 400]
    assert len(refused) >= 10
    assert [event for event in refused if event["outcome"] == "ok"] == []
    assert {event["outcome"] for event in refused if event["path"] == "/health/ready"} == {"draining"}


def test_whatever_happens_every_line_is_an_object_and_every_cause_is_told_once(ledger: Ledger) -> None:
    """Signals, crashes, hangs, exceptions and garbage, in workers and in front ends, in one server."""
    options = ("--access-log", "--log-format", "json", "--workers", "2", "--set", "max_suspicions=0")
    ends: tuple[tuple[str, list[int], str], ...] = (
        ("end", [9], "killed by SIGKILL (signal 9)"),
        ("end", [15], "killed by SIGTERM (signal 15)"),
        ("crash", [], "killed by SIGSEGV (signal 11)"),
        ("abort", [], "killed by SIGABRT (signal 6)"),
        ("hang", [], "was ended by its supervisor"),
        ("poison", [], "was ended by its supervisor"),
    )
    kinds = ("ValueError", "MemoryError", "RecursionError", "SystemExit", "ExceptionGroup", "TextRaisesError")
    with Server(ledger, *options, "--set", "max_restarts=100", actor=TOLD) as server:
        printed = ["\xff\xfe\x00\x1b[2J\u2028\r\n", '{"event": "forged"}\n', "y" * 40_000, "\nhalf a line"]
        for generation, (method, arguments, _) in enumerate(ends, 1):
            for text in printed if generation == 1 else ():
                assert server.call("Telling.prints", [text.encode().decode("latin-1")]).status == 200
            assert server.call("Telling.raises", [kinds[generation - 1]]).status == 500
            assert server.call(f"Telling.{method}", arguments, x_request_id=f"ends-{generation}").status == 500
            assert settled(functools.partial(has, server, "device_ready", generation + 1), 2 * DEADLINE_S)
            # Front ends gather what is lost for a moment before they tell it, and are killed below.
            assert settled(functools.partial(has, server, "requests_lost", generation), DEADLINE_S)
        for pid, number in zip(server.front_ends(), (signal.SIGSEGV, signal.SIGABRT), strict=True):
            os.kill(pid, number)
            assert settled(functools.partial(has_ended, server, pid), DEADLINE_S)
        assert settled(lambda: bool(server.front_ends()), DEADLINE_S)
        os.kill(server.front_ends()[0], signal.SIGKILL)
        assert settled(lambda: has(server, "front_end_ended", 3), DEADLINE_S)
        (supervisor,) = [pid for pid in children(server.pid) if b"atomr_mp.supervisor" in command_line(pid)]
        os.kill(supervisor, signal.SIGSEGV)
        assert settled(lambda: len(named(server, "ready")) == 2, 2 * DEADLINE_S), server.log()
        assert settled(lambda: server.call("Telling.noted", ["last"]).status == 200, DEADLINE_S)
        assert server.stop() == 0
        told = [json.loads(line) for line in server.log().splitlines()]
    for event in told:
        assert isinstance(event, dict)
        assert {"time", "level", "event", "text"} <= event.keys()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["time"])
        assert event["level"] in {"info", "warning", "error", "critical"}
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028]", event["text"])
    by_name: dict[str, list[dict[str, Any]]] = {}
    for event in told:
        by_name.setdefault(event["event"], []).append(event)
    assert "forged" not in by_name
    unplanned = by_name["device_end"]
    assert [event["generation"] for event in unplanned] == list(range(1, len(ends) + 1))
    for event, (_, _, how) in zip(unplanned, ends, strict=True):
        assert how in event["text"], event
        assert ("SIGKILL" in event["text"]) == ("SIGKILL" in how)
    lost = {event["generation"]: event for event in by_name["requests_lost"]}
    assert len(lost) == len(by_name["requests_lost"]) == len(ends)
    for generation, (method, _, _) in enumerate(ends, 1):
        assert lost[generation]["running"] == [{"id": f"ends-{generation}", "method": f"Telling.{method}"}]
    assert len(by_name["device_hung"]) == len(by_name["device_fault"]) == 1
    assert [event["exception"].rpartition(".")[2] for event in by_name["raised"]] == list(kinds)
    assert [event["status"] for event in by_name["front_end_ended"]] == [-11, -6, -9]
    assert len(by_name["lost"]) == 1
    crashes = [event["source"] for event in by_name["stderr"] if "Fatal Python error" in event["output"]]
    assert sorted(crashes) == ["front end 0", "front end 1", "supervisor"]
    output = [event["output"] for event in by_name["output"]]
    assert sum(line == "Fatal Python error: Segmentation fault" for line in output) == 1
    assert sum("half a line" in line for line in output) == 1


def test_requests_that_ran_when_a_process_was_killed_are_named(ledger: Ledger) -> None:
    """Of a worker, though another has answered them since; and of the supervisor, with how that has ended."""
    path = ledger.path / "waiter.py"
    with ledger.gate("gate") as gate:
        path.write_text(
            "import os\nfrom atomr_mp_workers import Actor, method\n"
            "class Waiter(Actor):\n    @method(thread=True, idempotent=True)\n    def wait(self) -> str:\n"
            f"        open('{gate.path}.here', 'a').write(str(os.getpid()) + '\\n')\n"
            f"        open('{gate.path}.go', 'rb', buffering=0).read(1)\n"
            "        return 'waited'\n"
        )
        with Server(ledger, actor=f"{path}:Waiter") as server, ThreadPoolExecutor(1) as asking:
            (supervisor,) = [pid for pid in children(server.pid) if b"atomr_mp.supervisor" in command_line(pid)]
            ask_as = functools.partial(server.call, "Waiter.wait")
            first = asking.submit(ask_as, x_request_id="is-sent-again")
            os.kill(gate.wait()[0], signal.SIGKILL)
            gate.wait()
            gate.open()
            assert first.result(DEADLINE_S).json() == "waited"
            assert settled(lambda: "Waiter.wait (request is-sent-again, ok)" in server.log())
            second = asking.submit(ask_as, x_request_id="is-lost")
            gate.wait()
            os.kill(supervisor, signal.SIGKILL)
            assert second.result(DEADLINE_S).status == 500
            assert settled(lambda: "Waiter.wait (request is-lost)" in server.log())
            assert settled(lambda: f"(supervisor pid {supervisor}, killed by SIGKILL)" in server.log())
            assert "generation 1: 1 request ran when its worker ended" in server.log()
            gate.open(10)


def test_a_hangup_during_a_reload_is_done_after_it_and_told(ledger: Ledger) -> None:
    """However many come: at the end each device has the code that was there at the last."""
    path = ledger.path / "versioned.py"

    def write(version: str, setup: str = "pass") -> None:
        path.write_text(
            "from atomr_mp_workers import Actor, Context, method\n"
            f"class Versioned(Actor):\n    def setup(self, context: Context) -> None:\n        {setup}\n"
            f"    @method\n    def version(self) -> str:\n        return {version!r}\n"
        )

    write("first")
    with Server(ledger, "--gpus", "2", actor=f"{path}:Versioned") as server, ledger.gate("gate") as gate:
        write("slow", f"open('{gate.path}.here', 'a').write('1\\n'); open('{gate.path}.go', 'rb', buffering=0).read(1)")
        server.process.send_signal(signal.SIGHUP)
        gate.wait()
        write("the last")
        for _ in range(3):
            server.process.send_signal(signal.SIGHUP)
        assert settled(lambda: "is reloaded again after that" in server.log())
        gate.open(2)
        assert settled(lambda: server.log().count("all devices are reloaded") == 2, DEADLINE_S)
        assert {server.call("Versioned.version").json() for _ in range(10)} == {"the last"}
        assert server.log().count("the reload of the pool begins") == 2

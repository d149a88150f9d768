"""A client that makes random gang calls, a program: prints a line of JSON for each outcome.

Arguments: the run directory, its number, the seed, how long it calls in seconds, and "rough" if calls may harm workers.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import deque
from typing import Any, Final

import atomr_mp
from atomr_mp import errors

IN_FLIGHT: Final = 12
STREAMS: Final = 0.1
"""How many of the calls stream."""
DEADLINE_S: Final = 60.0
GENTLE: Final = ("sums", "sums", "sums", "late", "twice", "twice")
ROUGH: Final = (*GENTLE, "raises", "raises late", "differs", "kills", "poisons")


def main() -> None:
    """Call until the time is over, then take the last outcomes."""
    run_dir, client, seed, duration_s, rough = sys.argv[1:]
    chosen = random.Random(f"{seed} {client}")
    until_s = time.monotonic() + float(duration_s)
    flight: deque[tuple[dict[str, Any], Any]] = deque()
    with atomr_mp.connect(run_dir=run_dir) as pool:
        worlds = {"a": pool.world("a"), "b": pool.world("b")}
        for world in worlds.values():
            world.wait_ready(DEADLINE_S)
        number = int(client) * 1_000_000
        while time.monotonic() < until_s or flight:
            while time.monotonic() < until_s and len(flight) < IN_FLIGHT:
                number += 1
                ways = ROUGH if rough == "rough" and chosen.random() < 0.1 else GENTLE
                call: dict[str, Any] = {
                    "number": number,
                    "world": chosen.choice("ab") if int(client) % 2 else chosen.choice("ba"),
                    "way": chosen.choice(ways),
                    "rank": chosen.randrange(4),
                    "values": [chosen.randrange(1000) for _ in range(chosen.choice([1, 3, 200]))],
                    "method": chosen.choice(["again", "once", "batch_again", "batch_once"]),
                    "each": chosen.random() < 0.2,
                }
                if call["way"] in {"kills", "poisons"}:
                    call["method"] = call["method"].replace(
                        "again", "once"
                    )  # else it would do so several times, until it may not be sent again
                actor = {"a": "Noting", "b": "Other"}[call["world"]]
                arguments = [call["number"], call["way"], call["rank"], call["values"]]
                reply: Any
                if chosen.random() < STREAMS:
                    call |= stream_of(chosen, is_rough=rough == "rough")
                    streamed = [call["number"], call["count"], call["values"]]
                    reply = worlds[call["world"]].stream(
                        f"{actor}.{call['method']}",
                        *([streamed] if call["method"].startswith("steps") else streamed),
                        first_s=DEADLINE_S,
                        ahead=call["ahead"],
                    )
                else:
                    reply = worlds[call["world"]].call(
                        f"{actor}.{call['method']}", *arguments, each=call["each"], deadline_s=DEADLINE_S
                    )
                flight.append((call, reply))
            call, reply = flight.popleft()
            outcome: dict[str, Any] = {"result": []}
            try:
                if call["way"] == "streams":
                    read(reply, outcome["result"], call["closes"])
                else:
                    outcome = {"result": reply.result(DEADLINE_S)}
            except errors.RequestError as error:
                outcome |= {"error": type(error).__name__, "maybe": error.maybe_executed, "text": str(error)[:300]}
            print(json.dumps({**call, **outcome}), flush=True)


def stream_of(chosen: random.Random, *, is_rough: bool) -> dict[str, Any]:
    """Return the fields of a call that streams. Where nothing is lost, no stream waits for its reader."""
    return {
        "way": "streams",
        "method": chosen.choice(["parts", "parts_once", "steps", "steps_once"]),
        "each": False,
        "count": chosen.randrange(40),
        "ahead": chosen.randint(1, 20) if is_rough else 64,
        "closes": chosen.randrange(40) if is_rough and chosen.random() < 0.3 else None,
    }


def read(stream: Any, parts: list[float], closes: int | None) -> None:
    """Read a stream to its end, or until so many parts have come."""
    for part in stream:
        parts.append(part)
        if len(parts) == closes:
            stream.close()
            return


if __name__ == "__main__":
    main()

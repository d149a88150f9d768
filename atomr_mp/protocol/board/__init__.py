"""The board: a page of shared memory in which a worker shows what it is doing. Pure over a memoryview.

The worker writes, the supervisor reads, without a lock and without asking: also when the worker hangs in C code or
has just died. Words are aligned 64-bit integers; an entry of the ring is guarded by its sequence number (odd while it
is being written). Layout, in words: magic, counters and gauges (`Counter`, `Gauge`), among them in word 6 the latest
start that is no longer among the entries and in word 22 its complement, in words 20 and 21 session and id of the
request that runs alone, if one does, in word 23 a sum of the two; from word 64 the histogram of latencies; from word
128 `SLOTS` entries of (sequence, session number, request id, start, deadline, end, watched, sum), times in
CLOCK_MONOTONIC nanoseconds, end 0 while the request runs; `Watched` is how long it may take, and where it runs;
`entry_sum` is the sum, and all ones in an entry that was never used, so no entry is ever all zeros. Words that are not
named are 0. Behind the entries are `BATCHED` blocks of figures of batches, one for each batched method (`Batches`);
their words change one by one, so a reader may see a batch in part. Behind these are `PLANNED` blocks of figures of
plans (`PlanCounts`), one for each library in the order of `library_names.LIBRARIES`, and `GRAPH_WORDS` of figures of
graphs (`GraphCounts`), then `WORKED` blocks of figures of libraries' methods: `NAME_WORDS` of a name, and `WorkCounts`.
Behind these are `STREAM_SLOTS` entries of streams that have taken their first step: of the same form, but an entry is
written anew for each step, with the number of the step among all streams', and stays while the stream lives. So what
runs long takes no place of others' starts. Words 26 and 27 count the steps that have begun and ended. The `LOOPS` words
from 28 on say when each actor's event loop has last turned; it looks while it has requests, 0 if it never had any.
The last `STACK_BYTES` are text, up to a zero byte: the stacks of the worker's threads, written when it gets the signal
`STACK_SIGNAL`; then, if its interpreter runs, it sets the word `ANSWERED`. A worker whose device works by itself says
besides what that has not finished, in the words `SURVEYED` and `SURVEYED` + 1. Word 24 has the signals that the worker
is just sending to itself, and word 25 their complement: bit N - 1 stands for signal N.

The histogram has 64 counters; that of number N counts the requests whose answer was ready in less than 2^N ns, and not
in less than half of it, after they had arrived.

The ring keeps completed entries until they are overwritten, so that after a death one can tell what had been started
from what had not. `check` tells whether a worker can have written a board.
"""

from __future__ import annotations

from atomr_mp.protocol.board.page import (
    ACTORS_THREADS,
    BATCHED,
    BOARD_BYTES,
    BUCKETS,
    DEFAULT_STREAM,
    DUMP_SIGNAL,
    GRAPH_WORDS,
    LOOPS,
    OFF_BOARD,
    PLAN_WORDS,
    STACK_AT,
    STACK_BYTES,
    STACK_SIGNAL,
    WORKED,
    Batches,
    Counter,
    Entry,
    Gauge,
    GraphCounts,
    PlaceKind,
    PlanCounts,
    Watched,
    WorkCounts,
    prepare,
    stream_bit,
)
from atomr_mp.protocol.board.reader import BoardReader
from atomr_mp.protocol.board.writer import BoardWriter

__all__ = [
    "ACTORS_THREADS",
    "BATCHED",
    "BOARD_BYTES",
    "BUCKETS",
    "DEFAULT_STREAM",
    "DUMP_SIGNAL",
    "GRAPH_WORDS",
    "LOOPS",
    "OFF_BOARD",
    "PLAN_WORDS",
    "STACK_AT",
    "STACK_BYTES",
    "STACK_SIGNAL",
    "WORKED",
    "Batches",
    "BoardReader",
    "BoardWriter",
    "Counter",
    "Entry",
    "Gauge",
    "GraphCounts",
    "PlaceKind",
    "PlanCounts",
    "Watched",
    "WorkCounts",
    "prepare",
    "stream_bit",
]

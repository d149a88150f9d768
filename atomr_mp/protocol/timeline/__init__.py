"""The timeline of a traced pool: records that workers write into rings of shared memory. Pure.

Theory of operation: `atomr-mp trace` has the supervisor make a ring for each process of a device. The process writes
records into it (`records`, `ring`), and the tracer alone reads them, while they come. Neither waits for the other: what
finds no room is dropped and counted. A ring outlives its process, so a worker's last records can be read after its end.
"""

from atomr_mp.protocol.timeline.records import LONGEST_S, RECORDS, Begun, Ended, GpuTime, Record, SpanKind, Spanned
from atomr_mp.protocol.timeline.ring import RING_BYTES, RecordReader, RecordWriter

__all__ = [
    "LONGEST_S",
    "RECORDS",
    "RING_BYTES",
    "Begun",
    "Ended",
    "GpuTime",
    "Record",
    "RecordReader",
    "RecordWriter",
    "SpanKind",
    "Spanned",
]

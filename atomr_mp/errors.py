"""Every error of the runtime, in one tree.

Pure; imported by both sides. An error crosses processes as its `code` and its fields, never as text to be searched,
and is the same class again on the other side. Each class says when it is raised, what still holds then, and what to
do. A class without facts of its own has its base's constructor, since every process makes all classes when it starts.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, TypeVar

ErrorT = TypeVar("ErrorT", bound=BaseException)

__all__ = [
    "ActorFailed",
    "ActorLoadFailed",
    "AtomrError",
    "BorrowConflict",
    "Cancelled",
    "CollectiveAborted",
    "CompilationFailed",
    "ConfigurationError",
    "ConnectionLost",
    "ContextPoisoned",
    "DeadlineExceeded",
    "DeviceUnavailable",
    "GpuRefInEventLoop",
    "GpuRefNoIndex",
    "GpuRefNoMethod",
    "GpuRefNoValue",
    "GpuRefOutOfExtent",
    "GpuRefReleased",
    "GpuRefSameProcess",
    "GpuRefStale",
    "GpuRefUndefined",
    "GpuRefWrongDevice",
    "InternalError",
    "InvalidRequest",
    "JournalDamaged",
    "JournalMismatch",
    "KernelsForbidden",
    "LibraryError",
    "NotAuthorized",
    "NotPicklable",
    "NumericalError",
    "OutOfMemory",
    "Overloaded",
    "PoisonRequest",
    "PoolBusy",
    "PoolLost",
    "PoolMismatch",
    "PoolUnreachable",
    "ProgramUnseen",
    "ProtocolError",
    "RemoteError",
    "RequestError",
    "ResidentCorrupt",
    "ResidentMismatch",
    "ResultUnread",
    "SessionLost",
    "SetupFailed",
    "StaleGeneration",
    "Unrecoverable",
    "Unsupported",
    "WorkerHung",
    "WorkerLost",
    "WorldMismatch",
    "WouldBlock",
    "WrongArgument",
    "from_wire",
    "to_wire",
]


MAX_INVALID_CHARS: Final = 2000
"""Longest message of an `InvalidRequest`."""


@dataclass(eq=False)
class AtomrError(Exception):
    """Base class of every error of this package.

    Args:
        message: What happened and what to do, in one or two sentences, for a person.
    """

    code: ClassVar[str] = "error"
    ends_worker: ClassVar[bool] = False
    """The worker in which it was raised cannot go on: it answers, tells the supervisor, and leaves."""
    message: str
    parts = 0
    """Number of parts that had arrived of a stream that ended with this error."""
    rank = -1
    """Rank of the member of a world whose part of a call ended with this error. -1 if it is of none: of no world, or of
    all members, as `PoolLost` is. Devices are -1 too where there is none."""
    left_epoch = False
    """Whether that member has found the world's epoch over, or has given it up. The runtime's."""

    def __post_init__(self) -> None:
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle its facts, the number of parts, the rank, and notes."""
        more = {name: self.__dict__[name] for name in ("parts", "rank", "__notes__") if name in self.__dict__}
        return (from_wire, to_wire(self), more)


# --- errors of a request -------------------------------------------------------------------------------------------


@dataclass(eq=False)
class RequestError(AtomrError):
    """Base class of the errors that a request can end with.

    Args:
        maybe_executed: False only if it is certain that no part of the request ran.
    """

    code: ClassVar[str] = "request_error"
    maybe_executed: bool = False


class InvalidRequest(RequestError):
    """The request itself is wrong: unknown actor or method, argument of a wrong type, shape or size.

    Holds: nothing ran; the worker and all other requests are unharmed.
    Do: correct the call; the message names the argument. Of a message of more than 2,000 characters it has both ends.
    """

    code: ClassVar[str] = "invalid_request"

    def __post_init__(self) -> None:
        left_out = len(self.message) - MAX_INVALID_CHARS
        if left_out > 0:  # it quotes what the caller has given, of any length
            half = MAX_INVALID_CHARS // 2 - 40
            self.message = f"{self.message[:half]} [... {left_out + 80} characters ...] {self.message[-half:]}"
        super().__post_init__()


class WrongArgument(InvalidRequest, TypeError):
    """A function of this package was given an argument that it does not take, or not all that it needs.

    Holds: nothing ran.
    Do: use the name that the message says.
    """

    code: ClassVar[str] = "wrong_argument"


class WouldBlock(InvalidRequest, RuntimeError):
    """A coroutine has asked for something that would block its event loop.

    Holds: nothing was done; the request that was asked about goes on.
    Do: `await` it, or do what the message says.
    """

    code: ClassVar[str] = "would_block"


class Unsupported(RequestError):
    """The request is well-formed, but this backend, library version or device cannot do it.

    Holds: nothing ran.
    Do: use what the message names as the nearest thing that works.
    """

    code: ClassVar[str] = "unsupported"


class NotPicklable(Unsupported, TypeError):
    """An object of this package was to be pickled or copied, and stands for something in its own process.

    Holds: nothing was done; the object.
    Do: what the message says, as to connect in the other process.
    """

    code: ClassVar[str] = "not_picklable"


@dataclass(eq=False)
class ActorFailed(RequestError):
    """A method of a user's actor raised an exception.

    Holds: the worker, the actor's state as the exception left it, and all other requests.
    Do: read `traceback_text`; it is the actor's own.

    Args:
        exception: Qualified name of the exception's class.
        traceback_text: The traceback inside the worker.
        returned: Qualified name of the type of a result that cannot be sent; empty if the method raised.
    """

    code: ClassVar[str] = "actor_failed"
    maybe_executed: bool = True
    exception: str = ""
    traceback_text: str = ""
    returned: str = ""


@dataclass(eq=False)
class InternalError(RequestError):
    """The runtime itself met a fault while it handled the request: a mistake of ours, not of the request's.

    Holds: the process that met it, and all other requests. What the request should have written is undefined.
    Do: report the lines that the log has under `reference`.

    Args:
        reference: Names the fault in the log of the process that met it.
    """

    code: ClassVar[str] = "internal_error"
    reference: str = ""


@dataclass(eq=False)
class WorkerLost(RequestError):
    """The worker process ended while the request was on it.

    Holds: other devices, other clients' requests on them, and this device after its restart.
    Do: send the request again if it may run twice, or if `maybe_executed` is False.

    Args:
        device: Index of the device in the pool.
        generation: The incarnation that ended.
        cause: How it ended, in words ("killed by SIGKILL").
        was_running: False if the request had ended and only its answer was lost, so it did not end the worker.
    """

    code: ClassVar[str] = "worker_lost"
    maybe_executed: bool = True
    device: int = -1
    generation: int = 0
    cause: str = ""
    was_running: bool = True


@dataclass(eq=False)
class WorkerHung(WorkerLost):
    """The worker process made no progress for longer than it may, and was killed while the request was on it.

    Holds: other devices, other clients' requests on them, and this device after its restart.
    Do: read `stack`; where it was no hang, raise `hang_timeout_s` of the actor or the method.

    Args:
        where: "python"; "native", in C code that does not come back; "cuda", in work on the GPU or in a call that
            waits for it.
        stack: The stack of the thread that hung, innermost first; empty if the process did not even show it.
    """

    code: ClassVar[str] = "worker_hung"
    where: str = ""
    stack: str = ""


@dataclass(eq=False)
class CollectiveAborted(RequestError):
    """A world lost a member, or a member left the others waiting, before a call of the world had ended everywhere.

    Holds: the other members' processes with all that they have; the world forms its next epoch, and takes calls again.
    Do: call again if the method may run twice, or if `maybe_executed` is False. State that calls build up belongs to
    an epoch: compare `context.world.epoch`.

    Args:
        world: The world's name.
        epoch: The epoch that ended.
        rank: The rank where that came from, -1 if from none.
        cause: What happened there, in words ("killed by SIGKILL").
        diverged: True if that rank has ended this very call while others waited for it in a collective. The call would
            do so again, so no client sends it again by itself.
        planned: Whether the epoch ended as planned, and no rank has begun the call, or its stream moves on.
    """

    code: ClassVar[str] = "collective_aborted"
    maybe_executed: bool = True
    world: str = ""
    epoch: int = 0
    rank: int = -1
    cause: str = ""
    diverged: bool = False
    planned: bool = False


@dataclass(eq=False)
class WorldMismatch(RequestError):
    """The ranks of a world have called different collectives, or the same with other types, sizes, operators or roots.

    Holds: the world; no data was exchanged by this collective.
    Do: make all ranks call the same; the message shows both sides.

    Args:
        world: The world's name.
        rank: The rank that raised this.
        other: A rank that has called something else.
    """

    code: ClassVar[str] = "world_mismatch"
    maybe_executed: bool = True
    world: str = ""
    rank: int = -1
    other: int = -1


@dataclass(eq=False)
class ConnectionLost(RequestError):
    """The client's connection to the worker ended before the answer came; the worker lives.

    Holds: the worker, and all further calls: the client connects again.
    Do: send the request again if it may run twice.

    Args:
        device: Index of the device in the pool.
        generation: The worker's incarnation.
    """

    code: ClassVar[str] = "connection_lost"
    maybe_executed: bool = True
    device: int = -1
    generation: int = 0


@dataclass(eq=False)
class ContextPoisoned(RequestError):
    """The device's context met a sticky fault; only a new process cures it, and one is being started.

    Holds: other devices; nothing that was on this context. Results sent before the fault stand.
    Do: send the request again if it may run twice; handles of this generation are stale.

    Args:
        device: Index of the device in the pool.
        generation: The incarnation that was poisoned.
        status: The driver's status code (CUDA numbering), 0 if not from a driver.
        was_running: As in `WorkerLost`.
    """

    code: ClassVar[str] = "context_poisoned"
    ends_worker: ClassVar[bool] = True
    maybe_executed: bool = True
    device: int = -1
    generation: int = 0
    status: int = 0
    was_running: bool = True


@dataclass(eq=False)
class PoisonRequest(RequestError):
    """This method with these arguments has ended workers, at last when nothing else ran there; it is refused.

    Holds: the worker, and all other requests. The ends are not counted against the device.
    Do: correct the arguments or the method; `atomr-mp admit FINGERPRINT` or `atomr-mp reload` admits it again.

    Args:
        fingerprint: Fingerprint of method and arguments, as in the event log; refs count by their layout.
        method: "Actor.method" or "library.request".
        ends: How many workers have ended while it ran.
    """

    code: ClassVar[str] = "poison_request"
    fingerprint: str = ""
    method: str = ""
    ends: int = 0


@dataclass(eq=False)
class OutOfMemory(RequestError):
    """An allocation failed, after caches were freed and tried again. Not a poison.

    Holds: the worker, all buffers, all other requests.
    Do: free buffers or send less at a time.

    Args:
        requested_bytes: How much was asked for; 0 if that is not known.
        exception: Qualified name of the exception's class, if the method itself raised one (`MemoryError`).
        traceback_text: The traceback of that inside the worker.
    """

    code: ClassVar[str] = "out_of_memory"
    maybe_executed: bool = True
    requested_bytes: int = 0
    exception: str = ""
    traceback_text: str = ""


@dataclass(eq=False)
class ResultUnread(RequestError):
    """The request ran and was answered; its large result lies in shared memory, which could not be opened.

    Holds: the result, for as long as its worker lives and the reply is kept.
    Do: ask the same reply for its `result()` again, or the same stream for its next part. Do not call again, for the
    request ran.

    Args:
        reason: Code of the error that opening the memory ended with ("deadline_exceeded", "overloaded"), "os" if the
            operating system refused.
    """

    code: ClassVar[str] = "result_unread"
    maybe_executed: bool = True
    reason: str = ""


@dataclass(eq=False)
class LibraryError(RequestError):
    """A library call failed with a status that is neither poison nor lack of memory.

    Holds: the worker and all other requests.
    Do: read the library's documentation of `name`.

    Args:
        library: Library tag ("cublas", "scipy", ...).
        status: The library's status code.
        name: The library's name of that status.
    """

    code: ClassVar[str] = "library_error"
    maybe_executed: bool = True
    library: str = ""
    status: int = 0
    name: str = ""


@dataclass(eq=False)
class NumericalError(RequestError):
    """The data of a request have no result: a matrix is singular or not positive definite, an iteration does not end.

    Holds: the worker, all other requests, the request's inputs, and its outputs that are not `undefined`.
    Do: look at the data where `batch` and `row` say; write undefined outputs again before they are read.

    Args:
        library: The library of the request ("blas").
        batch: Place of the first matrix or vector without a result in its batch, from 0; -1 if there is no batch.
        row: The row or column of it that the library names, from 0; -1 if it names none.
        undefined: The outputs whose content is undefined, as the request names them, separated by ", "; empty: all.
    """

    code: ClassVar[str] = "numerical_error"
    maybe_executed: bool = True
    library: str = ""
    batch: int = -1
    row: int = -1
    undefined: str = ""


@dataclass(eq=False)
class CompilationFailed(RequestError):
    """Source code was not compiled or linked: it is wrong, or the compiler crashed over it, or needs too much time.

    Holds: the worker, and all other requests: the compiler has a process of its own for each source.
    Do: correct what `log` names. Without it, make the source simpler; the message says how the compiler ended.

    Args:
        signal: The signal that ended the compiler's process ("SIGSEGV"); empty if none did.
        log: The compiler's messages as "name(line): error: text", errors before warnings if not all have room. Below
            them are the lines of the caller's own source and headers.
    """

    code: ClassVar[str] = "compilation_failed"
    signal: str = ""
    log: str = ""


class KernelsForbidden(RequestError):
    """This client may not compile, load or launch kernels of its own: a kernel can touch all memory of its worker.

    Holds: nothing ran.
    Do: call from the pool's own machine; or start the pool with another `kernels` setting, as the message says.
    """

    code: ClassVar[str] = "kernels_forbidden"


@dataclass(eq=False)
class DeviceUnavailable(RequestError):
    """The device takes no work: its circuit is open after too many ends, it is stopped, or it does not exist.

    Holds: other devices.
    Do: read the reason. Call again after `retry_after_s`, if it is set. Else run `atomr-mp restart DEVICE`, which also
    closes an open circuit.

    Args:
        device: Index of the device in the pool.
        retry_after_s: Time until a start of the device is tried; 0 if none is tried without an operator.
    """

    code: ClassVar[str] = "device_unavailable"
    device: int = -1
    retry_after_s: float = 0.0


@dataclass(eq=False)
class Overloaded(RequestError):
    """This client's window of unanswered requests to the device is full, or its backlog, or the queue in the worker.

    Holds: everything that was sent before.
    Do: wait for some results first, or `retry_after_s`; call fewer at a time.

    Args:
        device: Index of the device in the pool; -1 if it was the worker that had no room, or any device would do.
        window: Requests of this client that may be unanswered at a time, or wait for room; 0 if it was the worker's
            queue.
        retry_after_s: For a full queue in the worker: an estimate of when its requests are done, by their usual time; 0
            if that is not known. For a full window: 0.01, since it has room once one of its requests is answered.
    """

    code: ClassVar[str] = "overloaded"
    device: int = -1
    window: int = 0
    retry_after_s: float = 0.0


class DeadlineExceeded(RequestError):
    """The request's deadline passed before its answer came.

    Holds: the worker; with `maybe_executed` False the request was dropped before it ran.
    Do: allow more time (`deadline_s`), or look at what the device is busy with (`atomr-mp status`).
    """

    code: ClassVar[str] = "deadline_exceeded"


class Cancelled(RequestError):
    """The caller cancelled the request; it was dropped before it ran, unless `maybe_executed`.

    Holds: everything else.
    Do: nothing.
    """

    code: ClassVar[str] = "cancelled"


@dataclass(eq=False)
class StaleGeneration(RequestError):
    """The request or handle belongs to an incarnation of the device that has ended.

    Holds: nothing ran.
    Do: make the handle again on the current incarnation.

    Args:
        device: Index of the device in the pool.
        generation: The incarnation the request names.
        current: The incarnation that refused it.
    """

    code: ClassVar[str] = "stale_generation"
    device: int = -1
    generation: int = 0
    current: int = 0


@dataclass(eq=False)
class GpuRefStale(RequestError):
    """The ref's incarnation of the device has ended, and the memory with it.

    Holds: nothing ran, unless `maybe_executed`: what was sent through a relay that has ended may have run. Views that
    were taken before stay readable until they are collected.
    Do: put the data again, or compute it again, on the current incarnation.

    Args:
        device: Index of the ref's device in the pool.
        generation: The incarnation that made it.
        current: The device's incarnation now, 0 if not known.
    """

    code: ClassVar[str] = "gpu_ref_stale"
    device: int = -1
    generation: int = 0
    current: int = 0


@dataclass(eq=False)
class GpuRefReleased(RequestError):
    """The ref's memory was given back: by `free`, by the end of a `with`, or this client never had a lease of it.

    Holds: nothing ran.
    Do: keep the ref until its last use; to hand it to another process, `share` it.

    Args:
        device: Index of the ref's device in the pool.
    """

    code: ClassVar[str] = "gpu_ref_released"
    device: int = -1


@dataclass(eq=False)
class GpuRefWrongDevice(RequestError):
    """The request needs the ref's memory on the device it runs on, or on one that can reach it.

    Holds: nothing ran.
    Do: send the request to the ref's device, or copy the data first (`copy_to`).

    Args:
        device: Index of the ref's device in the pool.
    """

    code: ClassVar[str] = "gpu_ref_wrong_device"
    device: int = -1


class GpuRefOutOfExtent(RequestError):
    """The ref reaches beyond the memory that it names.

    Holds: nothing ran.
    Do: make views from refs (`ref[a:b]`, `reshape`, `transpose`), which never leave the extent.
    """

    code: ClassVar[str] = "gpu_ref_out_of_extent"


@dataclass(eq=False)
class GpuRefUndefined(RequestError):
    """The request reads memory that a failed request should have written; its content is undefined.

    Holds: the memory, as the failed request left it; everything else in the buffer.
    Do: write it again, all of it or just the failed request's part; or take it as it is (`GpuRef.accept`).

    Args:
        device: Index of the ref's device in the pool.
        failed_method: The failed request's actor and method.
        failed_request: Its number on its client's connection.
        failed_with: The code of its error.
    """

    code: ClassVar[str] = "gpu_ref_undefined"
    device: int = -1
    failed_method: str = ""
    failed_request: int = 0
    failed_with: str = ""


class GpuRefNoValue(InvalidRequest, TypeError):
    """A ref was used as if its elements were in this process: as a condition, to look for a value, or with NumPy.

    Holds: nothing ran; the ref.
    Do: read the elements first (`ref.numpy()`, `ref.item()`), or compute on the device with refs and numbers
    (`device.put(array)`); ask `ref is None` where that is meant.
    """

    code: ClassVar[str] = "gpu_ref_no_value"


class GpuRefNoMethod(InvalidRequest, AttributeError):
    """A ref was asked for a method or an attribute of NumPy's or CuPy's arrays that no request does.

    Holds: nothing ran; the ref.
    Do: what the message says; `hasattr` is False of it, as of any attribute that is missing.
    """

    code: ClassVar[str] = "gpu_ref_no_method"


class GpuRefNoIndex(InvalidRequest, IndexError):
    """A ref was indexed with a mask, a list, an array or another ref, which no request does.

    Holds: nothing ran; the ref.
    Do: choose with `device.elementwise.where`, or index in an actor's method or a copy, `ref.numpy()`.
    """

    code: ClassVar[str] = "gpu_ref_no_index"


class GpuRefInEventLoop(InvalidRequest, RuntimeError):
    """An operator or a method of a ref that waits for its answer was used in a running event loop.

    Holds: nothing ran; the ref.
    Do: await the request that the message names, or use `asyncio.to_thread`.
    """

    code: ClassVar[str] = "gpu_ref_in_event_loop"


class GpuRefSameProcess(RequestError):
    """A view of the memory was asked for in the process that made it, which cannot open its own handle.

    Holds: nothing ran.
    Do: use the array itself; an actor's arguments are arrays already.
    """

    code: ClassVar[str] = "gpu_ref_same_process"


class BorrowConflict(RequestError):
    """Two uses of a buffer exclude each other: one writes what the other reads or writes, and no order settles it.

    Holds: nothing ran.
    Do: the message names both uses; release the view, or give the request operands that do not overlap.
    """

    code: ClassVar[str] = "borrow_conflict"


class ProgramUnseen(RequestError):
    """A program was named by its digest, which the worker does not know in this session.

    Holds: nothing ran.
    Do: nothing: this package's clients tell the worker the whole program, and run it. One that speaks the protocol
    itself does the same.
    """

    code: ClassVar[str] = "program_unseen"


@dataclass(eq=False)
class RemoteError(RequestError):
    """The peer sent an error whose code this version does not know.

    Holds: unknown; treat the request as possibly executed.
    Do: use the same version on both sides.

    Args:
        remote_code: The unknown code.
    """

    code: ClassVar[str] = "remote_error"
    maybe_executed: bool = True
    remote_code: str = ""


# --- errors of a pool or a worker ----------------------------------------------------------------------------------


@dataclass(eq=False)
class PoolLost(RequestError):
    """The pool's supervisor is gone, and its workers with it; or it has ended this client's session.

    Holds: results received before. Where the message says that only the session was ended, the pool goes on.
    Do: start or connect again.
    """

    code: ClassVar[str] = "pool_lost"
    maybe_executed: bool = True

    def again(self, before: str = "", *, maybe_executed: bool) -> Self:
        """Return a new error of this kind for another request, with a text before this one's."""
        return type(self)(f"{before}{self.message}", maybe_executed=maybe_executed)


class SessionLost(PoolLost):
    """A remote client was away for longer than its session is kept, or its key was revoked.

    Holds: the pool, unless it has ended meanwhile, and results received before. Calls that were sent may have run.
    Do: connect again.
    """

    code: ClassVar[str] = "session_lost"


class PoolUnreachable(AtomrError):
    """No pool answers at the run directory.

    Holds: nothing was started or changed.
    Do: start one (`atomr-mp start`), or name its run directory.
    """

    code: ClassVar[str] = "pool_unreachable"


@dataclass(eq=False)
class PoolBusy(AtomrError):
    """A living supervisor already holds the run directory.

    Holds: that pool is untouched.
    Do: connect to it, stop it, or choose another run directory.

    Args:
        supervisor_pid: Pid of the supervisor that holds it, 0 if unknown.
    """

    code: ClassVar[str] = "pool_busy"
    supervisor_pid: int = 0


class PoolMismatch(RequestError):
    """A message or handle of another pool, or of an earlier life of this one.

    Holds: nothing ran.
    Do: drop the handle; make a new one on this pool.
    """

    code: ClassVar[str] = "pool_mismatch"


class NotAuthorized(AtomrError):
    """The peer is not a process of this user in this pid namespace, or did not show the session's secret.

    Of a remote client: its key is not admitted, or may not give this order.

    Holds: nothing was done for the peer.
    Do: connect as the user who started the pool; or have the key admitted (`atomr-mp keys admit`).
    """

    code: ClassVar[str] = "not_authorized"


class ProtocolError(AtomrError):
    """Bytes that are no message of this protocol version, or a message that is out of turn or out of bounds.

    Holds: the receiver is unharmed; the offending message was dropped.
    Do: correct the sender; `docs/protocol.md` describes the wire.
    """

    code: ClassVar[str] = "protocol_error"


class ConfigurationError(AtomrError):
    """A setting, path or environment is wrong, and nothing can be started with it.

    Holds: nothing was started.
    Do: what the message says.
    """

    code: ClassVar[str] = "configuration_error"


class JournalDamaged(AtomrError):
    """A map's journal is damaged, and whole records follow the damage.

    Holds: the file is as it was; nothing of it was used.
    Do: run the same command with `--repair-journal`, or `Pool.map` with `repair_journal=True`: the whole records are
    saved.
    """

    code: ClassVar[str] = "journal_damaged"


class JournalMismatch(AtomrError):
    """A map's journal belongs to another method or input, or the file is not a journal.

    Holds: the file is as it was; nothing of it was used.
    Do: name the journal of this job, or a new file.
    """

    code: ClassVar[str] = "journal_mismatch"


class ActorLoadFailed(AtomrError):
    """An actor's class could not be imported or is not a valid actor, or its `setup` needs a missing module.

    A restart would not help.

    Holds: nothing ran; the device stays stopped.
    Do: correct the actor, or install what the message names; then `atomr-mp restart DEVICE`.
    """

    code: ClassVar[str] = "actor_load_failed"


@dataclass(eq=False)
class SetupFailed(AtomrError):
    """An actor's `setup` raised, or the worker did not become ready in time.

    Holds: the device is tried again, within its restart intensity.
    Do: read the worker's log (`atomr-mp logs DEVICE`).

    Args:
        traceback_text: The traceback inside the worker, if there is one.
    """

    code: ClassVar[str] = "setup_failed"
    traceback_text: str = ""


class ResidentMismatch(AtomrError):
    """Resident memory of this name and version has another layout than the actor asks for.

    Holds: that memory, and whoever uses it; the device stays stopped.
    Do: give the new layout a new version; or `atomr-mp resident free NAME`. Then `atomr-mp restart DEVICE`.
    """

    code: ClassVar[str] = "resident_mismatch"


class ResidentCorrupt(AtomrError):
    """The content of resident memory has changed since it was sealed: its checksum differs.

    Holds: whoever uses that memory goes on. No further process gets it; the next start fills it again.
    Do: restart the workers that use it; if it comes again, look for memory errors of the hardware.
    """

    code: ClassVar[str] = "resident_corrupt"


@dataclass(eq=False)
class Unrecoverable(RequestError):
    """Neither a retry nor a restart helps in this state.

    Holds: other devices.
    Do: stop the pool and report what the message says.
    """

    code: ClassVar[str] = "unrecoverable"
    ends_worker: ClassVar[bool] = True
    maybe_executed: bool = True


# --- errors that are kept ---------------------------------------------------------------------------------------------


def unraised(error: ErrorT) -> ErrorT:
    """Return an equal error of this package without a traceback, to be raised in place of one that something keeps.

    The traceback shows frames. If one of them leads to the error, as that of a caller who has the reply does, all that
    the frames refer to stays until Python's cyclic collector runs: views, refs and large arrays.
    """
    cls = type(error)
    again = cls.__new__(cls, *error.args)
    again.__dict__.update(error.__dict__)
    if hasattr(error, "__notes__"):
        again.__notes__ = list(error.__notes__)
    again.__cause__, again.__context__ = error.__cause__, error.__context__
    again.__suppress_context__ = error.__suppress_context__
    return again


# --- the wire form -------------------------------------------------------------------------------------------------


def to_wire(error: AtomrError) -> tuple[str, str, dict[str, Any]]:
    """Return (code, message, fields) of an error."""
    fields = {f.name: getattr(error, f.name) for f in dataclasses.fields(error) if f.name != "message"}
    if error.left_epoch is True:
        fields["left_epoch"] = True
    return error.code, error.message, fields


def from_wire(code: str, message: str, fields: dict[str, Any]) -> AtomrError:
    """Rebuild an error from its wire form; fields that this version does not know, or of a wrong type, are left out.

    An unknown code gives `RemoteError`, so a newer peer never breaks an older one.
    """
    cls = _BY_CODE.get(code)
    if cls is None:
        return RemoteError(message, maybe_executed=bool(fields.get("maybe_executed", True)), remote_code=code)
    known = {
        f.name: fields[f.name]
        for f in dataclasses.fields(cls)
        if f.name in fields and type(fields[f.name]) is _FACT_TYPES[str(f.type)]
    }
    known.pop("message", None)
    error = cls(message, **known)
    if fields.get("left_epoch") is True:
        error.left_epoch = True
    return error


def facts_of(cls: type[AtomrError]) -> dict[str, type] | None:
    """Return the types of a class's facts, and of its message, by name; None if the class is none of this module's."""
    return _FACTS.get(cls)


def _tree(cls: type[AtomrError]) -> dict[str, type[AtomrError]]:
    found = {cls.code: cls}
    for sub in cls.__subclasses__():
        found |= _tree(sub)
    return found


_FACT_TYPES: Final[dict[str, type]] = {"str": str, "int": int, "bool": bool, "float": float}
_BY_CODE: Final = _tree(AtomrError)
_FACTS: Final[dict[type[AtomrError], dict[str, type]]] = {
    cls: {f.name: _FACT_TYPES[str(f.type)] for f in dataclasses.fields(cls)} for cls in _BY_CODE.values()
}

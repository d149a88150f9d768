"""The base class of actors, and the decorator that makes a method a request."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, TypeVar, overload

from atomr_mp.errors import WrongArgument
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.keywords import checked_names, checks_names
from atomr_mp.protocol.messages.data import MAX_ITEMS
from atomr_mp_workers.memory.arrays import DeviceArray

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


class DeviceMemory(Protocol):
    """Makes arrays in the device's memory."""

    def empty(self, dtype: str, shape: Iterable[int]) -> DeviceArray:
        """Return a new array, its content undefined."""

    def keep(self, array: Any) -> DeviceArray:
        """Return a copy of an array."""


class ResidentMemory(Protocol):
    """Makes, or finds, memory that outlives this process."""

    def get(
        self,
        name: str,
        layout: Mapping[str, tuple[Sequence[int], Any]],
        version: str,
        fill: Callable[[Mapping[str, Any]], object],
        *,
        checksum: bool,
    ) -> Mapping[str, Any]:
        """Return the arrays of a blob."""


class ActorLibraries(Protocol):
    """The libraries as an actor calls them: `libraries.blas.gemm(a, b)`.

    Their methods are the same as on a `Device`, with the same checks. They take `DeviceArray`s and arrays (NumPy's on
    the host backend, CuPy's on a GPU), and run on the calling thread: they return the result, not a reply. An output
    that is left out is a new `DeviceArray`, as from `Context.empty`. On a GPU the work goes on the calling method's
    stream; a call waits for it only if the result is a number, or if data can make the request fail.
    """

    def program(self) -> Any:
        """Return a program to record: many requests that are run as one. Its `run` returns the result."""

    def __getattr__(self, name: str) -> Any:
        """Return a library."""


class ProcessPhase:
    """What the process of an actor is at.

    Attributes:
        warming: Whether it calls methods with their examples.
    """

    warming = False


@dataclass(frozen=True)
@checks_names
class Context:
    """The process that an actor lives in, as the actor sees it."""

    pool: str
    device: int
    """Index of the device in the pool."""
    device_name: str
    backend: str
    """ "host" or "cuda"."""
    generation: int
    """Number of this device's incarnation; grows when a worker is replaced."""
    log: logging.Logger
    """Writes to the worker's log file (`atomr-mp logs DEVICE`)."""
    memory: DeviceMemory
    resident_memory: ResidentMemory
    libraries: ActorLibraries
    """For the thread that runs `setup` or a method."""
    phase: ProcessPhase = field(default_factory=ProcessPhase, repr=False)
    world: Any = None
    """The actor's world, an `OwnWorld`: its `name`, `rank`, `size` and `epoch`, and its collectives. None outside of
    worlds."""

    @property
    def warming(self) -> bool:
        """Whether the process is not ready yet, and calls methods with their examples, see `method`. Any thread."""
        return self.phase.warming

    def empty(self, shape: Sequence[int], dtype: DTypeLike = "float32") -> DeviceArray:
        """Return a new array in device memory, row-major, its content undefined. Any thread.

        A method that returns it gives its caller a ref; write it through its `array`. In a request it lies in the
        caller's own memory. In `setup` it lies in the memory of this process, which every client that gets such a ref
        can map.

        Args:
            shape: Lengths of the dimensions.
            dtype: Name of the element type, or NumPy's or ml_dtypes' type.

        Raises:
            InvalidRequest: The shape or the element type is impossible.
            OutOfMemory: There is no room.
        """
        return self.memory.empty(dtypes.name_for(dtype), shape)

    def keep(self, array: Any) -> DeviceArray:
        """Return a copy of an array in device memory, as from `empty`: the caller gets a ref, not the content.

        Raises:
            InvalidRequest: Its element type does not cross the wire.
            OutOfMemory: There is no room.
        """
        return self.memory.keep(array)

    def resident(
        self,
        name: str,
        layout: Mapping[str, tuple[Sequence[int], Any]],
        *,
        version: str,
        fill: Callable[[Mapping[str, Any]], object],
        checksum: bool = False,
    ) -> Mapping[str, Any]:
        """Return arrays in device memory that outlives this process: weights, loaded once.

        Call it in `setup`, on its thread.

        One of the processes that ask fills them, by `fill`; the others wait, or take over if it dies. After that nobody
        can write them: a write is refused, or ends the process that tries. All later processes of the device find them,
        until the pool stops. On the host backend all devices share them.

        Args:
            name: Names the content, together with the version; the same on each device.
            layout: Shape and element type of each array, by its name. The types are those of `empty`, or NumPy's.
            version: Version of the content. After a change the arrays are filled again, beside the old ones while these
                are in use.
            fill: Called with the arrays by name, in the one elected process: NumPy's on the host backend, CuPy's on a
                GPU. Their content is undefined at first. `fill` must not ask for resident memory itself.
            checksum: Compute a checksum when they are sealed, and compare it in each process that gets them; takes some
                seconds a GiB.

        Returns:
            The arrays, read-only. They keep their addresses for the process's life.

        Raises:
            InvalidRequest: Called outside `setup`, or the layout is invalid.
            ResidentMismatch: This version exists with another layout.
            ResidentCorrupt: The checksum differs.
            OutOfMemory: There is no room, or the pool's limit is reached (`resident_max_bytes`).
            SetupFailed: A process that `fill` has left behind could still write the arrays.
        """
        return self.resident_memory.get(name, layout, version, fill, checksum=checksum)

    def resident_module(
        self,
        module: Any,
        name: str,
        *,
        version: str,
        load: Callable[[], Mapping[str, Any]] | None = None,
        checksum: bool = False,
    ) -> None:
        """Move the parameters of a torch module into resident memory, see `resident`; its buffers stay its own.

        The parameters are replaced by read-only ones without gradients, for inference.

        Args:
            module: A `torch.nn.Module`. With `load`, its parameters may have no content (`torch.device("meta")`).
            name: As in `resident`.
            version: As in `resident`.
            load: Returns the parameters' content as tensors by name, as `module.state_dict` does; called only in the
                process that fills. None: the module's own content.
            checksum: As in `resident`.

        Raises:
            InvalidRequest: The module has no parameters, or the result of `load` lacks one.
            AtomrError: As in `resident`.
        """
        from atomr_mp_workers.memory.resident.torch_modules import move

        move(self, module, name, version, load, checksum=checksum)


class Actor:
    """Base class of users' actors: one instance lives in each device's process.

    Methods decorated with `method` become requests. They run on the process's one loop, one at a time, except those
    with `thread=True`, which run on a thread of this actor, one at a time unless it has more `threads`. While a method
    runs on the loop, nothing else of this process does: no other request, no message. So put a method that takes longer
    than some milliseconds and does not need the loop on the thread; then only this actor's other thread methods wait
    for it.

    Asynchronous methods (`async def`), coroutines and generators alike, run on an asyncio event loop of this actor's
    own, in a thread of its own: a task for each request, up to `max_running` at a time. They are for engines with an
    asynchronous interface.
    """

    stream_priority: ClassVar[str] = "normal"
    """Priority of the CUDA stream of the methods that run on the loop: "low", "normal" or "high". If work of several
    streams waits for the GPU, the work of the highest priority begins first; running work is not interrupted."""

    threads: int = 1
    """How many of its requests or batches with `thread=True` run at a time, each on a thread of its own: from 1 to 64;
    they still begin in order. With more than one, lock state that the methods share, or do not change it. More threads
    help methods that release the interpreter's lock, as NumPy, torch and waiting code do. Read after `setup`, which may
    set it."""

    max_running: int = 128
    """How many of its asynchronous requests run at a time, on its event loop: from 1 to 256; they begin in order, and
    others wait. A stream counts while it works, not while its reader has no room. Read after `setup`, which may set
    it."""

    hang_timeout_s: float | None = None
    """How long a method may run, in seconds, before the process counts as hung and is replaced. For a method on a
    stream, how long no work may end there; for an asynchronous method, how long its event loop may be blocked.
    `math.inf` for no limit. None for the pool's setting `hang_timeout_s`, which begins only when the deadline has
    passed. A method may have a limit of its own, see `method`."""

    resend: str = "never"
    """Requests that a client sends again without the caller when this worker has ended: "unstarted" for requests that
    certainly did not start, "never" for none. Use "unstarted" if a request needs no state of earlier requests in this
    process. Requests of idempotent methods are sent again in any case. A method may differ, see `method`."""

    def setup(self, context: Context) -> Awaitable[None] | None:
        """Load what the methods need: weights, tables, connections. Runs once, before the first request.

        An exception makes the start fail; the device is tried again within its restart intensity. It may be `async
        def`: then it runs on the actor's event loop, where it can start tasks that stay.
        """

    def teardown(self) -> Awaitable[None] | None:
        """Release resources that need an orderly end. Runs when the worker is drained, never when it is killed.

        It may be `async def`, as `setup` may. Tasks that are left on the actor's event loop are cancelled after it.
        """


@checks_names
@dataclass(frozen=True)
class Batch:
    """Rules for putting a method's requests together: see `method`.

    A batch begins when it is full, or `max_wait_s` after the arrival of its first request, but never while as many
    batches of this method run as the actor has threads, or one without threads. Requests that arrive meanwhile are in
    the next batch. So with `max_wait_s=0` no request waits for others: a batch has the requests that arrived while the
    one before ran.

    With `rows`, the method is written for one call instead of for lists. The arrays and lists among its arguments have
    a row for each of their first entries; a request brings the same number of rows in each, from 1 to `max_items`, and
    is never cut. The method is called once with the rows of all requests of a batch behind each other. It returns an
    array or a list with as many rows, or a dict or a tuple of these, and each request gets its own rows. Requests share
    a batch if their arrays have the same element types and lengths behind the first, and all other arguments are equal:
    None, bool, int, float, complex, str, bytes, and maps of these and of lists. A raised exception fails all requests
    of the batch.

    Args:
        max_items: Most requests in a batch, or most rows.
        max_bytes: Most bytes of their arguments together; a larger request is alone. None for no limit.
        max_wait_s: How long the first may wait for others; kept to about a millisecond.
        key: Function of a request's arguments; requests with equal results, such as a shape, may share a batch. Or the
            name of a method of the actor that is such a function. It runs on the process's loop, so keep it short. None
            if all requests may share a batch.
        rows: Whether requests are joined by their rows.
    """

    max_items: int = 32
    max_bytes: int | None = None
    max_wait_s: float = 0.002
    key: str | Callable[..., Hashable] | None = None
    rows: bool = False

    @property
    def call_items(self) -> int:
        """Most items that a call may have; 0 if calls must be single, so that the size of their arguments is known."""
        is_counted = self.max_bytes is None and not self.rows
        return min(self.max_items, MAX_ITEMS) if is_counted and self.max_items > 1 else 0


def by_shape(*arguments: Any) -> Hashable:
    """Return the shapes and element types of the arguments that are arrays: a `Batch.key` for stacked arrays."""
    return tuple([(str(each.dtype), tuple(each.shape)) for each in arguments if hasattr(each, "shape")])


@checks_names
@dataclass(frozen=True)
class Steps:
    """Continuous batching: the method is one step over all its streams that run now; see `method`.

    A step runs as soon as one stream is new or gone, or has room at its reader, and the one before is over.

    Args:
        max_items: Most streams that are live at a time; others wait for their turn to begin.
    """

    max_items: int = 64


Example = Callable[[], tuple[Any, ...] | Mapping[str, Any]]
"""Returns arguments: by position or, in a map, by name."""


@dataclass(frozen=True)
class MethodOptions:
    """The arguments of `method`, which `checked_options` checks when the actor is loaded."""

    idempotent: bool
    thread: bool
    deadline_s: float | None
    writes: Sequence[str] = ()
    batch: Batch | None = None
    steps: Steps | None = None
    queue: int | None = None
    hang_timeout_s: float | None = None
    resend: str | None = None
    openai: str | None = None
    exclusive: bool = False
    resumable: bool = False
    example: str | Example | None = None

    @property
    def joins_rows(self) -> bool:
        """Whether its batches are of rows."""
        return self.batch is not None and self.batch.rows


F = TypeVar("F", bound=Callable[..., Any])


@overload
def method(function: F, /) -> F: ...


@overload
def method(
    *,
    idempotent: bool = False,
    thread: bool = False,
    deadline_s: float | None = None,
    writes: Sequence[str] = (),
    batch: Batch | Steps | None = None,
    queue: int | None = None,
    hang_timeout_s: float | None = None,
    resend: Literal["never", "unstarted"] | None = None,
    openai: Literal["embeddings", "chat", "completions"] | None = None,
    exclusive: bool = False,
    resumable: bool = False,
    example: str | Example | None = None,
) -> Callable[[F], F]: ...


@checked_names
def method(
    function: F | None = None,
    /,
    *,
    idempotent: bool = False,
    thread: bool = False,
    deadline_s: float | None = None,
    writes: Sequence[str] = (),
    batch: Batch | Steps | None = None,
    queue: int | None = None,
    hang_timeout_s: float | None = None,
    resend: Literal["never", "unstarted"] | None = None,
    openai: Literal["embeddings", "chat", "completions"] | None = None,
    exclusive: bool = False,
    resumable: bool = False,
    example: str | Example | None = None,
) -> F | Callable[[F], F]:
    """Make a method of an actor a request.

    Arguments and results are None, bool, int, float, str, bytes, lists, maps, and arrays.
    Annotations are enforced: an argument that does not fit is refused with `InvalidRequest` before the method runs.

    A ref arrives as a read-only array over the device's own memory (NumPy's on the host backend); as a `DeviceArray` if
    the parameter is annotated so, or the ref is inside a list or map. A `DeviceArray` as a result is a ref for the
    caller; any other array is sent. Array arguments are read-only, since large ones travel in shared memory.

    A generator, with `thread=True`, streams: each `yield` is a part of the answer, and its return value is the stream's
    result. It is resumed when its reader has room for another part. If its reader is gone, it gets `GeneratorExit` at
    its `yield`.

    A method that is a coroutine (`async def`), or an asynchronous generator, which streams, runs on the actor's event
    loop, see `Actor.max_running`. When nobody wants its result any more (its caller has cancelled it or is gone, its
    deadline has passed), its task is cancelled at its current `await`.

    Args:
        function: The method, when used without arguments.
        idempotent: Running it twice does no harm, so it may be sent again after a worker was lost.
        thread: Run it on the actor's own thread instead of the process's loop.
        deadline_s: Default deadline of its requests, in seconds; None for the pool's default.
        writes: Parameters that are refs whose memory the method writes. It waits for all earlier uses of them, and
            later uses wait for it.
        batch: Put requests together, of any callers. The method is written for lists: each parameter gets one, with an
            entry for each request, and is annotated so (`list[str]`; callers send one `str`), and it returns a list of
            as many results. A result that is an exception fails its own request; a raised exception fails all. None for
            one request at a time. With `Steps`, the method streams without being a generator: it is one step over all
            streams that run, takes one parameter, `Live[Arguments, Part]`, and returns None. An exception fails all
            that are live. With `Batch(rows=True)` it is written for arrays, whose rows requests bring.
        queue: Most of its requests that may wait in one process, of all clients; one more is `Overloaded`. None for as
            many as the process may have of all methods.
        hang_timeout_s: How long it may run before the process counts as hung, see `Actor.hang_timeout_s`; None for the
            actor's own.
        resend: Which of its requests a client sends again by itself after a worker's end, see `Actor.resend`; None for
            the actor's own.
        openai: `atomr-mp serve` also answers with it in OpenAI's form, as the model of the actor's name. "embeddings":
            it takes one text and returns a vector. "chat": its first parameter takes the messages, and it returns text.
            "completions": its first parameter takes the prompt. Its other parameters are those of the form that it
            knows, as `temperature`. None for no form.
        exclusive: For a generator: it keeps its thread until it ends, even while it waits for its reader. Needed if it
            has state by thread beyond context variables and that of torch and CuPy.
        resumable: For a method that streams: where its worker ends, it goes on in the next one, behind the parts that
            its caller has. A generator takes for that a parameter `start`, the number of those parts, or `sent`, the
            list of them, which callers do not give; of `Steps`, `LiveStream.sent` has them.
        example: Function that returns the arguments of a call: a tuple, as `(x,)`, or a map by name. Or the name of a
            method of the actor that does. The arguments may be as large as those of any call, and arrive as a client's
            do; for a parameter that takes only refs, since `writes` names it or it is a `DeviceArray`, an array will
            do: a copy of it is put on the device. Every new process, standbys too, makes this call once between `setup`
            and its first request, while `Context.warming` is true: kernels are compiled, handles made, graphs captured.
            The result is dropped, and the memory of the call given back. The call must change nothing outside the
            process. If it fails, `setup` has failed.
    """
    options = MethodOptions(
        idempotent=idempotent,
        thread=thread,
        deadline_s=deadline_s,
        writes=writes,
        batch=None if isinstance(batch, Steps) else batch,
        steps=batch if isinstance(batch, Steps) else None,
        queue=queue,
        hang_timeout_s=hang_timeout_s,
        resend=resend,
        openai=openai,
        exclusive=exclusive,
        resumable=resumable,
        example=example,
    )

    def mark(function: F) -> F:
        given: object = function
        if not callable(given) or isinstance(given, staticmethod | classmethod):
            kind = type(given).__name__
            raise WrongArgument(
                f"method decorates a function, not a {kind}; it comes beneath other decorators, and takes its options "
                "by name: @method(thread=True)"
            )
        setattr(function, OPTIONS, options)
        return function

    return mark if function is None else mark(function)


OPTIONS: Final = "__atomr_mp_method__"
"""Attribute under which `method` leaves its options."""

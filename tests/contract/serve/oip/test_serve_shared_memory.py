"""Tensors in system shared memory, by Triton's own clients over HTTP and gRPC."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Final, Self

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as some

from tests.inferring import (
    ADD_SUB,
    COUNT,
    ECHOING,
    INFERRED,
    Stream,
    bearer,
    client_of,
    numbers,
    stub_of,
    texts,
)
from tests.serving import Answer, Server
from tests.support import ACTORS, Ledger, settled

triton: Any = pytest.importorskip("tritonclient.grpc")
gevent: Any = pytest.importorskip("gevent")
http: Any = pytest.importorskip("tritonclient.http")
shm: Any = pytest.importorskip("tritonclient.utils.shared_memory")
from tritonclient.grpc import service_pb2 as messages  # noqa: E402 - after the check that there is one
from tritonclient.utils import InferenceServerException, serialize_byte_tensor  # noqa: E402

SHM: Final = Path("/dev/shm")

PREFIX: Final = f"am-shm-{os.getpid()}-"

NUMBERS: Final = itertools.count()

MOST: Final = 6
"""Most regions."""

RAW_BYTES: Final = 8 * 2**20


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    """Of all tests here; nothing of theirs is left in /dev/shm."""
    with Ledger() as counting:
        yield counting
        gevent.get_hub().destroy(destroy_loop=True)  # its thread and its descriptors
        resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined] # Triton's library has started it
    assert not list(SHM.glob(f"{PREFIX}*"))


@pytest.fixture(scope="module", params=[1, 3], ids=["one", "three"])
def server(
    ledger: Ledger, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with one front end, or several."""
    models = tmp_path_factory.mktemp("models") / "models.toml"
    models.write_text('[sums]\nmethod = "Accumulating.add"\nsequence_to = "sequence"\nsequence_idle_s = 30.0\n')
    with Server(
        ledger,
        *("--allow-client-shm", "--grpc-port", "0", "--workers", str(request.param), "--actor", ECHOING),
        *("--actor", f"{ACTORS}/sequences.py:Accumulating", "--models", models),
        *("--limit", f"regions={MOST}", "--limit", f"raw_bytes={RAW_BYTES}"),
        actor=INFERRED,
        run_dir=f"run-{request.param}",
    ) as found:
        assert settled(lambda: found.ask("GET", "/v2/health/ready").status == 200)
        yield found


@pytest.fixture(autouse=True)
def _none_registered(server: Server) -> Iterator[None]:
    yield
    assert post(server, "unregister").status == 200
    assert status(server) == []


class Region:
    """A client's file, and what it has to do with it; removed at the end of the `with`.

    Args:
        server: Where it is registered; None for nowhere.
        nbytes: Its size.
    """

    def __init__(self, server: Server | None, nbytes: int) -> None:
        self.name: Final = f"region-{next(NUMBERS)}"
        self.key: Final = f"/{PREFIX}{next(NUMBERS)}"
        self.nbytes: Final = nbytes
        self.path: Final = SHM / self.key[1:]
        self._server: Final = server

    def __enter__(self) -> Self:
        with self.path.open("xb") as file:
            file.truncate(self.nbytes)
        if self._server is not None:
            assert register(self._server, self.name, self.key, self.nbytes).status == 200
        return self

    def __exit__(self, *_exc: object) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def put(self, data: bytes, at: int = 0) -> None:
        """Write bytes."""
        with self.path.open("r+b") as file:
            file.seek(at)
            file.write(data)

    def data(self, at: int = 0, nbytes: int | None = None) -> bytes:
        """Return bytes."""
        return self.path.read_bytes()[at:][:nbytes]

    def at(self, nbytes: int, offset: int = 0) -> dict[str, Any]:
        """Return the parameters of a tensor there."""
        return {
            "shared_memory_region": self.name,
            "shared_memory_byte_size": nbytes,
            **({"shared_memory_offset": offset} if offset else {}),
        }


def post(server: Server, path: str, body: Any = None) -> Answer:
    """Ask for something of shared memory."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    return server.ask("POST", f"/v2/systemsharedmemory/{path}", data)


def register(server: Server, name: str, key: str, nbytes: int, offset: int = 0) -> Answer:
    """Register a region."""
    return post(server, f"region/{name}/register", {"key": key, "offset": offset, "byte_size": nbytes})


def status(server: Server) -> Any:
    """Return all regions."""
    return server.ask("GET", "/v2/systemsharedmemory/status").json()


def infer(server: Server, model: str, inputs: list[Any], outputs: list[Any] | None = None) -> Answer:
    """Ask for an inference in JSON."""
    body = {"inputs": inputs} | ({} if outputs is None else {"outputs": outputs})
    return server.ask("POST", f"/v2/models/{model}/infer", json.dumps(body).encode())


def given(name: str, datatype: str, shape: list[int], where: dict[str, Any]) -> dict[str, Any]:
    """Return an input in shared memory."""
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": where}


class Face:
    """Triton's client of one protocol.

    Args:
        kind: "http", "grpc", or "stream".
        server: The server.
    """

    def __init__(self, kind: str, server: Server) -> None:
        self._module: Final = http if kind == "http" else triton
        self._kind: Final = kind
        self._headers: Final = bearer(server)
        self._stack: Final = contextlib.ExitStack()
        if kind == "http":
            self.client = self._stack.enter_context(http.InferenceServerClient(f"127.0.0.1:{server.port}"))
        else:
            self.client = self._stack.enter_context(client_of(server))
        self._stream = None if kind != "stream" else self._stack.enter_context(Stream(self.client, self._headers))

    def close(self) -> None:
        """End it."""
        self._stack.close()

    def register(self, name: str, key: str, nbytes: int, offset: int = 0) -> None:
        """Register a region."""
        self.client.register_system_shared_memory(name, key, nbytes, offset, headers=self._headers)

    def unregister(self, name: str = "") -> None:
        """Forget one, or all."""
        self.client.unregister_system_shared_memory(name, headers=self._headers)

    def status(self, name: str = "") -> list[tuple[Any, ...]]:
        """Return what is registered."""
        found = self.client.get_system_shared_memory_status(name, headers=self._headers)
        if self._kind == "http":
            return [(each["name"], each["key"], each["offset"], each["byte_size"]) for each in found]
        return [(each.name, each.key, each.offset, each.byte_size) for _, each in sorted(found.regions.items())]

    def input(self, name: str, shape: list[int], datatype: str, region: str, nbytes: int, offset: int = 0) -> Any:
        """Return an input in shared memory."""
        made = self._module.InferInput(name, shape, datatype)
        made.set_shared_memory(region, nbytes, offset)
        return made

    def plain(self, name: str, array: np.ndarray[Any, Any]) -> Any:
        """Return an input that is sent."""
        made = self._module.InferInput(name, list(array.shape), triton.np_to_triton_dtype(array.dtype))
        made.set_data_from_numpy(array)
        return made

    def output(self, name: str, region: str = "", nbytes: int = 0, offset: int = 0) -> Any:
        """Return an output that is wanted, in shared memory if there is a region."""
        made = self._module.InferRequestedOutput(name)
        if region:
            made.set_shared_memory(region, nbytes, offset)
        return made

    def infer(self, model: str, inputs: list[Any], outputs: list[Any]) -> Any:
        """Ask for an inference."""
        if self._stream is None:
            return self.client.infer(model, inputs, outputs=outputs, headers=self._headers)
        self._stream.ask(model, *inputs, outputs=outputs)
        return self._stream.next()


@pytest.fixture(params=["http", "grpc", "stream"])
def face(server: Server, request: pytest.FixtureRequest) -> Iterator[Face]:
    """Each of Triton's clients."""
    made = Face(request.param, server)
    yield made
    made.close()


@contextlib.contextmanager
def tritons(name: str, nbytes: int) -> Iterator[Any]:
    """Return a region as Triton's own library makes it."""
    made = shm.create_shared_memory_region(name, f"/{PREFIX}{next(NUMBERS)}", nbytes)
    try:
        yield made
    finally:
        shm.destroy_shared_memory_region(made)


def test_triton_s_client_has_inputs_and_outputs_in_shared_memory(face: Face) -> None:
    """By its own library for regions, as its examples do it."""
    first, second = np.arange(16, dtype=np.int32), np.ones(16, np.int32)
    with tritons("given", 128) as given_region, tritons("found", 128) as found_region:
        shm.set_shared_memory_region(given_region, [first, second])
        face.register("given", given_region._shm_key, 128)
        face.register("found", found_region._shm_key, 128)
        answer = face.infer(
            ADD_SUB,
            [face.input("a", [16], "INT32", "given", 64), face.input("b", [16], "INT32", "given", 64, 64)],
            [face.output("total", "found", 64), face.output("difference", "found", 64, 64)],
        )
        told = answer.get_output("total")
        assert list(told["shape"] if isinstance(told, dict) else told.shape) == [16]
        total = shm.get_contents_as_numpy(found_region, np.int32, [16])
        difference = shm.get_contents_as_numpy(found_region, np.int32, [16], offset=64)
        assert (total == first + second).all()
        assert (difference == first - second).all()
        assert [each[0] for each in face.status()] == ["found", "given"]
        assert face.status("given") == [("given", given_region._shm_key, 0, 128)]
        del total, difference  # they lie in the region


def test_what_is_shared_and_what_is_sent_go_together(face: Face, server: Server) -> None:
    """An input of each kind, and an output of each."""
    with Region(server, 4096) as region:
        region.put(numbers(*range(8)).astype(np.int32).tobytes(), 100)
        answer = face.infer(
            ADD_SUB,
            [face.plain("a", np.full(8, 5, np.int32)), face.input("b", [8], "INT32", region.name, 32, 100)],
            [face.output("total", region.name, 64, 1000), face.output("difference")],
        )
        assert answer.as_numpy("difference").tolist() == [5, 4, 3, 2, 1, 0, -1, -2]
        assert np.frombuffer(region.data(1000, 32), np.int32).tolist() == list(range(5, 13))
        assert region.data(1032, 3000) == bytes(3000)[: 4096 - 1032]


KINDS: Final = {
    "bool_": np.array([True, False, True]),
    "uint8": np.arange(256, dtype=np.uint8),
    "int64": np.array([[-(2**63)], [2**63 - 1]]),
    "fp16": np.array([0.5, -65504.0], np.float16),
    "fp32": np.random.default_rng(1).standard_normal((300, 1000)).astype(np.float32),
    "fp64": np.array([np.pi, np.nan, -0.0]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_type_crosses_both_ways(face: Face, kind: str) -> None:
    """Also a large array, which threads move; bit for bit, with an offset of the region in its file."""
    array = KINDS[kind]
    nbytes = array.nbytes
    with Region(None, 2 * nbytes + 12) as region:
        face.register(region.name, region.key, 2 * nbytes + 4, 8)
        region.put(array.tobytes(), 8 + 4)
        datatype = triton.np_to_triton_dtype(array.dtype)
        face.infer(
            f"Echoing.{kind}",
            [face.input("x", list(array.shape), datatype, region.name, nbytes, 4)],
            [face.output("output", region.name, nbytes, nbytes + 4)],
        )
        assert region.data(nbytes + 12) == array.tobytes()
        assert region.data(0, 12) == bytes(12)


@pytest.mark.parametrize("times", [1, 400_000], ids=["small", "large"])
def test_texts_and_bytes_are_serialized_there(face: Face, server: Server, times: int) -> None:
    """With their lengths, as Triton has them."""
    parts = texts(b"", b"\x00\xff", "\u00e9")
    data = serialize_byte_tensor(parts).item()
    with Region(server, 2**21) as region:
        region.put(data)
        answer = face.infer(
            "Inferred.join",
            [face.input("parts", [3], "BYTES", region.name, len(data)), face.plain("times", numbers(times))],
            [face.output("output", region.name, 2**20 * 3 // 2 + 500_000, 64)],
        )
        joined = b"".join(parts.tolist()) * times
        assert region.data(64, 4 + len(joined)) == len(joined).to_bytes(4, "little") + joined
        told = answer.get_output("output")
        parameters = told["parameters"] if isinstance(told, dict) else told.parameters
        size = parameters["shared_memory_byte_size"]
        assert (size if isinstance(size, int) else size.int64_param) == 4 + len(joined)


def test_inputs_may_overlap_and_outputs_may_not(server: Server) -> None:
    """An output may lie where an input was, which has been read."""
    with Region(server, 64) as region:
        region.put(np.arange(16, dtype=np.int32).tobytes())
        inputs = [given("a", "INT32", [4], region.at(16)), given("b", "INT32", [4], region.at(16, 4))]
        outputs = [{"name": "total", "parameters": region.at(16)}]
        assert infer(server, ADD_SUB, inputs, outputs).status == 200
        assert np.frombuffer(region.data(0, 16), np.int32).tolist() == [1, 3, 5, 7]
        more = {"name": "difference", "parameters": region.at(16, 12)}
        answer = infer(server, ADD_SUB, inputs, [*outputs, more])
        assert (answer.status, "would overlap" in answer.json()["error"]) == (400, True)
        apart = {"name": "difference", "parameters": region.at(16, 16)}
        wide = [{"name": "total", "parameters": region.at(40)}, apart]  # what is written does not overlap
        assert infer(server, ADD_SUB, inputs, wide).status == 200


def test_an_output_that_does_not_fit_names_both_sizes_and_writes_nothing(server: Server) -> None:
    """Neither it nor any other."""
    with Region(server, 64) as region:
        region.put(b"\x01" * 64)
        inputs = [given("a", "INT32", [4], region.at(16)), given("b", "INT32", [4], region.at(16, 16))]
        outputs = [
            {"name": "total", "parameters": region.at(16, 32)},
            {"name": "difference", "parameters": region.at(15, 48)},
        ]
        answer = infer(server, ADD_SUB, inputs, outputs)
        assert answer.status == 400
        assert "has 16 bytes, and 15 were given" in answer.json()["error"]
        assert region.data() == b"\x01" * 64


def test_a_failed_call_leaves_the_output_s_region_as_it_was(server: Server) -> None:
    """Whatever its method did."""
    with Region(server, 64) as region:
        region.put(b"\x01" * 64)
        inputs = [{"name": "x", "datatype": "FP64", "shape": [1], "data": [1.0]}]
        answer = infer(server, "Inferred.fail", inputs, [{"name": "output", "parameters": region.at(8)}])
        assert (answer.status, region.data()) == (500, b"\x01" * 64)


def _truncated(region: Region) -> None:
    os.truncate(region.path, 32)


def _unlinked(region: Region) -> None:
    region.path.unlink()


def _replaced(region: Region) -> None:
    region.path.unlink()
    region.path.write_bytes(bytes(region.nbytes))


def _foreign(region: Region) -> None:
    os.chown(region.path, 4242, -1)


def _linked(region: Region) -> None:
    other = region.path.with_name(f"{region.path.name}-other")
    region.path.rename(other)
    region.path.symlink_to(other)


def _fifo(region: Region) -> None:
    region.path.unlink()
    os.mkfifo(region.path)


def _folder(region: Region) -> None:
    region.path.unlink()
    region.path.mkdir()


SPOILT: Final = [_truncated, _unlinked, _replaced, _foreign, _linked, _fifo, _folder]


def _remove(region: Region) -> None:
    if region.path.is_dir():
        region.path.rmdir()
    region.path.with_name(f"{region.path.name}-other").unlink(missing_ok=True)


@pytest.mark.parametrize("spoil", SPOILT)
def test_a_file_that_is_spoilt_harms_only_its_own_client(
    server: Server, ledger: Ledger, spoil: Callable[[Region], None]
) -> None:
    """After its registration: as an input, as an output, and also if that happens while the method runs."""
    if spoil is _foreign and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    tag = f"spoilt-{spoil.__name__}-{next(NUMBERS)}"
    with Region(server, 4096) as region, Region(server, 4096) as other:
        region.put(len(tag).to_bytes(4, "little") + tag.encode())
        note = [{"name": "tag", "datatype": "BYTES", "shape": [1], "data": [tag]}]
        gate = ledger.gate(tag)
        wait = [
            {"name": "count", "datatype": "INT64", "shape": [1], "data": [64]},
            {"name": "gate", "datatype": "BYTES", "shape": [1], "data": [gate.path]},
        ]
        pids = server.front_ends()
        with stub_of(server) as stub:
            running = stub.ModelInfer.future(
                _as_message("Inferred.zeros", wait, "output", region.at(64)), metadata=tuple(bearer(server).items())
            )
            gate.wait()
            try:
                spoil(region)
                for inputs, outputs in (
                    ([given("tag", "BYTES", [1], region.at(4 + len(tag)))], None),
                    (note, [{"name": "output", "parameters": region.at(64)}]),
                ):
                    answer = infer(server, "Inferred.note", inputs, outputs)
                    assert answer.status == 400, answer.body
                    assert "shorter" in answer.json()["error"] or "register it again" in answer.json()["error"]
                assert tag not in ledger.runs()
            finally:
                gate.open()
            assert running.code().name == "INVALID_ARGUMENT", running.details()
            _remove(region)
        other.put(len(tag).to_bytes(4, "little") + tag.encode())
        inputs = [given("tag", "BYTES", [1], other.at(4 + len(tag)))]
        assert infer(server, "Inferred.note", inputs).status == 200
        assert server.front_ends() == pids


def _as_message(model: str, inputs: list[Any], output: str, where: dict[str, Any]) -> Any:
    """Return a request over gRPC with typed contents and an output in shared memory."""
    made = messages.ModelInferRequest(model_name=model)
    for each in inputs:
        added = made.inputs.add(name=each["name"], datatype=each["datatype"], shape=each["shape"])
        if each["datatype"] == "BYTES":
            added.contents.bytes_contents.extend(text.encode() for text in each["data"])
        else:
            added.contents.int64_contents.extend(each["data"])
    wanted = made.outputs.add(name=output)
    wanted.parameters["shared_memory_region"].string_param = where["shared_memory_region"]
    wanted.parameters["shared_memory_byte_size"].int64_param = where["shared_memory_byte_size"]
    return made


@pytest.mark.parametrize("spoil", [each for each in SPOILT if each not in (_truncated, _replaced)])
def test_what_is_no_file_of_ours_looks_like_none(server: Server, spoil: Callable[[Region], None]) -> None:
    """A client cannot tell whether there is a file that it may not use."""
    if spoil is _foreign and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    with Region(None, 4096) as region:
        spoil(region)
        found = register(server, "r", region.key, 4096)
        _remove(region)
        region.path.unlink(missing_ok=True)
        missing = register(server, "r", region.key, 4096)
        assert (found.status, found.body) == (missing.status, missing.body) == (400, missing.body)
        assert "there is no regular file" in missing.json()["error"]


def test_a_fifo_s_writer_goes_on_waiting(server: Server) -> None:
    """The server does not open it."""
    with Region(None, 1) as region:
        _fifo(region)
        assert register(server, "r", region.key, 1).status == 400
        with pytest.raises(OSError, match="No such device"):  # as it has no reader
            os.open(region.path, os.O_WRONLY | os.O_NONBLOCK)


BAD: Final = {
    "no key": {"byte_size": 4},
    "no size": {"key": "/k"},
    "zero": {"key": "/k", "byte_size": 0},
    "negative": {"key": "/k", "byte_size": -1},
    "negative offset": {"key": "/k", "byte_size": 4, "offset": -4},
    "wraps": {"key": "/k", "byte_size": 4, "offset": 2**64 - 4},
    "wraps signed": {"key": "/k", "byte_size": 2**62, "offset": 2**62},
    "huge": {"key": "/k", "byte_size": 2**64},
    "a flag": {"key": "/k", "byte_size": True},
    "a fraction": {"key": "/k", "byte_size": 4.0},
    "parent": {"key": "/..", "byte_size": 4},
    "self": {"key": ".", "byte_size": 4},
    "path": {"key": "/a/b", "byte_size": 4},
    "two slashes": {"key": "//a", "byte_size": 4},
    "outside": {"key": "/../etc/passwd", "byte_size": 4},
    "NUL": {"key": "/a\0b", "byte_size": 4},
    "empty": {"key": "/", "byte_size": 4},
    "surrogate": {"key": "/\ud800", "byte_size": 4},
    "long": {"key": "/" + "k" * 256, "byte_size": 4},
    "number": {"key": 7, "byte_size": 4},
    "list": [],
    "no json": b"{",
}


@pytest.mark.parametrize("name", BAD)
def test_bad_registrations_are_refused_in_words(server: Server, name: str) -> None:
    """And register nothing."""
    answer = post(server, "region/r/register", BAD[name])
    assert (answer.status, list(answer.json())) == (400, ["error"]), answer.body


def test_a_region_lies_within_its_file_and_a_tensor_within_its_region(server: Server) -> None:
    """Also where numbers would overflow."""
    with Region(None, 64) as region:
        for nbytes, offset in ((65, 0), (64, 1), (1, 64), (2**63 - 1, 0), (1, 2**62)):
            answer = register(server, region.name, region.key, nbytes, offset)
            assert (answer.status, "not within its file" in answer.json()["error"]) == (400, True)
        assert register(server, region.name, region.key, 32, 16).status == 200
        for nbytes, offset in ((33, 0), (8, 25), (2**63 - 1, 2**63 - 1), (0, 33)):
            where = region.at(nbytes, offset)
            inputs = [given("tag", "BYTES", [1], where)]
            answer = infer(server, "Inferred.note", inputs)
            assert (answer.status, "not within" in answer.json()["error"]) == (400, True)
            inputs = [{"name": "tag", "datatype": "BYTES", "shape": [1], "data": ["within"]}]
            answer = infer(server, "Inferred.note", inputs, [{"name": "output", "parameters": where}])
            assert (answer.status, "not within" in answer.json()["error"]) == (400, True)


def test_a_tensor_has_the_size_of_its_extent(server: Server) -> None:
    """Of numbers exactly; BYTES have as many elements as their shape."""
    with Region(server, 64) as region:
        region.put(np.full(16, 2, np.int32).tobytes())
        cases: list[tuple[str, dict[str, Any], str]] = [
            (ADD_SUB, given("a", "INT32", [4], region.at(20)), "20 bytes"),
            (ADD_SUB, given("a", "INT32", [2**40], region.at(16)), "16 bytes"),
            ("Echoing.bool_", given("x", "BOOL", [4], region.at(4)), "0 or 1"),
            ("Inferred.upper", given("text", "BYTES", [1], region.at(12)), "more than the 1 elements"),
            ("Inferred.upper", given("text", "BYTES", [2**30], region.at(12)), "at most"),
            ("Inferred.upper", given("text", "BYTES", [3], region.at(12)), "element"),
        ]
        for model, bad, words in cases:
            answer = infer(server, model, [bad])
            assert (answer.status, words in answer.json()["error"]) == (400, True), answer.body


def test_parameters_of_shared_memory_go_together(server: Server) -> None:
    """Half of them are refused, and what contradicts them."""
    with Region(server, 64) as region:
        whole = region.at(4)
        good = given("tag", "BYTES", [1], whole)
        for bad in (
            good | {"data": ["x"]},
            good | {"parameters": whole | {"binary_data_size": 4}},
            *(good | {"parameters": {name: each for name, each in whole.items() if name != left}} for left in whole),
            *(good | {"parameters": whole | {"shared_memory_byte_size": each}} for each in (-1, "4", 4.0, True, 2**63)),
            *(good | {"parameters": whole | {"shared_memory_offset": each}} for each in (-1, "4", 2**64 - 4)),
            good | {"parameters": whole | {"shared_memory_region": 7}},
        ):
            assert infer(server, "Inferred.note", [bad]).status == 400, bad
        plain = {"name": "tag", "datatype": "BYTES", "shape": [1], "data": ["together"]}
        for more in ({"classification": 1}, {"binary_data": True}):
            outputs = [{"name": "output", "parameters": region.at(32) | more}]
            assert infer(server, "Inferred.note", [plain], outputs).status == 400
        unknown = {"shared_memory_region": "no", "shared_memory_byte_size": 4}
        assert infer(server, "Inferred.note", [good | {"parameters": unknown}]).status == 404
        assert infer(server, "Inferred.note", [plain], [{"name": "output", "parameters": unknown}]).status == 404


def test_grpc_says_the_same_by_its_codes(server: Server) -> None:
    """Unknown, taken, and what cannot be."""
    face = Face("grpc", server)
    try:
        with Region(server, 64) as region:
            cases: list[tuple[Callable[[], Any], str]] = [
                (lambda: face.status("no"), "NOT_FOUND"),
                (lambda: face.register(region.name, region.key, 64), "ALREADY_EXISTS"),
                (lambda: face.register("r", f"/{PREFIX}none", 64), "INVALID_ARGUMENT"),
                (lambda: face.register("", region.key, 64), "INVALID_ARGUMENT"),
                (lambda: face.register("r", region.key, 64, 2**64 - 64), "INVALID_ARGUMENT"),
                (
                    lambda: face.infer("Inferred.upper", [face.input("text", [1], "BYTES", "no", 4)], []),
                    "NOT_FOUND",
                ),
                (
                    lambda: face.infer("Inferred.upper", [face.input("text", [1], "BYTES", region.name, 65)], []),
                    "INVALID_ARGUMENT",
                ),
            ]
            for call, code in cases:
                with pytest.raises(InferenceServerException) as found:
                    call()
                assert found.value.status() == f"StatusCode.{code}"
            face.unregister("no")
    finally:
        face.close()


def test_a_region_that_is_unregistered_serves_the_calls_that_run(server: Server, ledger: Ledger) -> None:
    """Their outputs are written, and further calls are refused."""
    with Region(server, 64) as region, stub_of(server) as stub:
        region.put(b"\x01" * 64)
        gate = ledger.gate(f"unregistered-{next(NUMBERS)}")
        arguments = [
            {"name": "count", "datatype": "INT64", "shape": [1], "data": [16]},
            {"name": "gate", "datatype": "BYTES", "shape": [1], "data": [gate.path]},
        ]
        asked = _as_message("Inferred.zeros", arguments, "output", region.at(64))
        running = stub.ModelInfer.future(asked, metadata=tuple(bearer(server).items()))
        gate.wait()
        assert post(server, f"region/{region.name}/unregister").status == 200
        outputs = [{"name": "output", "parameters": region.at(64)}]
        assert infer(server, "Inferred.zeros", arguments, outputs).status == 404
        gate.open()
        (told,) = running.result().outputs
        assert told.parameters["shared_memory_byte_size"].int64_param == 16
        assert region.data() == bytes(16) + b"\x01" * 48


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@hypothesis.given(
    some.binary(max_size=60)
    | some.fixed_dictionaries(
        {},
        optional={
            "key": some.text(alphabet="/.a\0\ud800", max_size=4) | some.just(f"/{PREFIX}any") | some.none(),
            "offset": some.integers(-1, 2**65) | some.integers(0, 80) | some.text(max_size=2),
            "byte_size": some.integers(-1, 2**65) | some.integers(0, 80) | some.booleans(),
        },
    ).map(lambda each: json.dumps(each).encode())
)
def test_any_body_registers_a_region_or_is_refused(server: Server, body: bytes) -> None:
    """One within its file; no front end ends."""
    pids = server.front_ends()
    path = SHM / f"{PREFIX}any"
    path.write_bytes(bytes(64))
    try:
        answer = post(server, "region/any/register", body)
        if answer.status == 200:
            (told,) = status(server)
            assert told["key"] == f"/{PREFIX}any"
            assert told["offset"] + told["byte_size"] <= 64
            assert post(server, "unregister").status == 200
        else:
            assert (answer.status, list(answer.json())) == (400, ["error"])
    finally:
        path.unlink()
    assert server.front_ends() == pids


def test_a_name_is_registered_once_and_forgotten_as_often_as_one_likes(server: Server) -> None:
    """By whichever front end; what is forgotten is unknown to all."""
    with Region(server, 64) as region:
        for _ in range(6):
            answer = register(server, region.name, region.key, 64)
            assert (answer.status, "already in manager" in answer.json()["error"]) == (409, True)
            told = server.ask("GET", f"/v2/systemsharedmemory/region/{region.name}/status").json()
            assert told == [{"name": region.name, "key": region.key, "offset": 0, "byte_size": 64}]
        for _ in range(6):
            assert post(server, f"region/{region.name}/unregister").status == 200
            answer = server.ask("GET", f"/v2/systemsharedmemory/region/{region.name}/status")
            assert (answer.status, "Unable to find" in answer.json()["error"]) == (404, True)
        assert register(server, region.name, region.key, 64).status == 200


def test_a_name_may_be_any_text(server: Server) -> None:
    """Of one segment; it comes back as it was."""
    face = Face("http", server)
    with Region(None, 64) as region:
        for name in ("a b", "\u00e9\u4e2d", "%", "..", "a?b#c", "x" * 255):
            face.register(name, region.key, 64)
            assert face.status(name) == [(name, region.key, 0, 64)]
            face.unregister(name)
        assert register(server, "x" * 256, region.key, 64).status == 400
        assert server.raw(
            f"POST /v2/systemsharedmemory/region/%ff/register HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer "
            f"{server.token}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode()
        ).startswith(b"HTTP/1.1 400")
    face.close()


def test_the_number_of_regions_is_bounded(server: Server) -> None:
    """There is room again once one is forgotten."""
    with Region(None, 64) as region:
        for number in range(MOST):
            assert register(server, f"r{number}", region.key, 64).status == 200
        answer = register(server, "one-more", region.key, 64)
        assert (answer.status, f"the most are {MOST}" in answer.json()["error"]) == (503, True)
        assert post(server, "region/r0/unregister").status == 200
        assert register(server, "one-more", region.key, 64).status == 200


def test_inputs_in_shared_memory_count_as_bodies_do(server: Server) -> None:
    """Those of a request have a bound, and are refused before anything is read."""
    with Region(server, RAW_BYTES + 4) as region:
        answer = infer(server, "Echoing.uint8", [given("x", "UINT8", [RAW_BYTES + 1], region.at(RAW_BYTES + 1))])
        assert (answer.status, str(RAW_BYTES) in answer.json()["error"]) == (413, True)
        halves = RAW_BYTES // 2 + 4
        inputs = [given(name, "INT32", [halves // 4], region.at(halves)) for name in ("a", "b")]
        assert infer(server, ADD_SUB, inputs).status == 413
        outputs = [{"name": "output", "parameters": region.at(RAW_BYTES)}]
        answer = infer(server, "Echoing.uint8", [given("x", "UINT8", [RAW_BYTES], region.at(RAW_BYTES))], outputs)
        assert answer.status == 200


def test_the_parts_of_a_stream_have_inputs_there_and_no_outputs(server: Server) -> None:
    """Each part would be written over the one before."""
    face = Face("stream", server)
    try:
        with Region(server, 64) as region:
            region.put(numbers(3).tobytes())
            upto = face.input("upto", [1], "INT64", region.name, 8)
            assert face._stream is not None
            face._stream.ask(COUNT, upto)
            assert [face._stream.next().as_numpy("number").tolist() for _ in range(3)] == [[0], [1], [2]]
            face._stream.ask(COUNT, upto, outputs=[face.output("number", region.name, 8)])
            with pytest.raises(InferenceServerException, match="answers in parts"):
                face._stream.next()
    finally:
        face.close()


def test_requests_of_a_sequence_keep_their_order(server: Server) -> None:
    """Also if reading an earlier one's input takes longer."""
    face = Face("stream", server)
    try:
        nbytes = 6 * 2**20
        with Region(server, nbytes) as region, Region(server, 64) as found:
            region.put(numbers(1).tobytes())
            stream = face._stream
            assert stream is not None
            for sequence in range(1, 6):
                large = face.input("value", [nbytes // 8], "INT64", region.name, nbytes)
                stream.ask("sums", large, sequence_id=sequence, sequence_start=True)
                stream.ask("sums", face.plain("value", numbers(2)), sequence_id=sequence)
                total = face.output("total", found.name, 8, 8)
                last = face.input("value", [1], "INT64", region.name, 8)
                stream.ask("sums", last, sequence_id=sequence, sequence_end=True, outputs=[total])
                assert [stream.next().as_numpy("total").tolist() for _ in range(2)] == [[1], [3]]
                (told,) = stream.next().get_response().outputs
                assert told.parameters["shared_memory_offset"].int64_param == 8
                assert found.data(8, 8) == numbers(4).tobytes()
    finally:
        face.close()


def test_a_registration_outlives_its_front_end(server: Server) -> None:
    """Each front end is killed; the next one knows the region."""
    with Region(server, 64) as region:
        region.put(np.arange(16, dtype=np.int32).tobytes())
        for pid in server.front_ends():
            os.kill(pid, signal.SIGKILL)
        inputs = [given("a", "INT32", [4], region.at(16)), given("b", "INT32", [4], region.at(16, 16))]

        def answers() -> bool:
            with contextlib.suppress(OSError):
                return infer(server, ADD_SUB, inputs).status == 200
            return False

        assert settled(answers)
        assert [each["name"] for each in status(server)] == [region.name]


def test_clients_with_regions_of_their_own_do_not_disturb_each_other(server: Server) -> None:
    """While regions come and go in all front ends."""
    import concurrent.futures

    def use(number: int) -> None:
        for turn in range(15):
            with Region(server, 64) as region:
                value = np.full(4, 100 * number + turn, np.int32)
                region.put(value.tobytes())
                inputs = [given("a", "INT32", [4], region.at(16)), given("b", "INT32", [4], region.at(16))]
                answer = infer(server, ADD_SUB, inputs, [{"name": "total", "parameters": region.at(16, 32)}])
                assert answer.status == 200, answer.body
                assert (np.frombuffer(region.data(32, 16), np.int32) == 2 * value).all()
                assert post(server, f"region/{region.name}/unregister").status == 200

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        list(threads.map(use, range(4)))


def test_there_are_no_regions_of_gpus(face: Face, server: Server) -> None:
    """Triton's examples unregister all of them before they begin; none can be registered."""
    headers = bearer(server)
    face.client.unregister_cuda_shared_memory(headers=headers)
    face.client.unregister_cuda_shared_memory("r", headers=headers)
    told = face.client.get_cuda_shared_memory_status(headers=headers)
    assert not (told if isinstance(told, list) else told.regions)
    with pytest.raises(InferenceServerException, match="Unable to find cuda"):
        face.client.get_cuda_shared_memory_status("r", headers=headers)
    with pytest.raises(InferenceServerException, match="not offered"):
        face.client.register_cuda_shared_memory("r", b"x" * 64, 0, 64, headers=headers)


def test_metadata_tells_that_it_is_offered(server: Server) -> None:
    """Among the extensions."""
    assert "system_shared_memory" in server.ask("GET", "/v2").json()["extensions"]


def test_without_the_switch_nothing_is_read(ledger: Ledger) -> None:
    """The refusal names the switch."""
    with Server(ledger, "--grpc-port", "0", actor=INFERRED, run_dir="run-off") as off, Region(None, 64) as region:
        assert settled(lambda: off.ask("GET", "/v2/health/ready").status == 200)
        assert "system_shared_memory" not in off.ask("GET", "/v2").json()["extensions"]
        answer = register(off, region.name, region.key, 64)
        assert (answer.status, "--allow-client-shm" in answer.json()["error"]) == (501, True)
        answer = infer(off, "Inferred.note", [given("tag", "BYTES", [1], region.at(4))])
        assert (answer.status, "--allow-client-shm" in answer.json()["error"]) == (400, True)
        face = Face("grpc", off)
        with pytest.raises(InferenceServerException, match="allow-client-shm"):
            face.register(region.name, region.key, 64)
        face.close()

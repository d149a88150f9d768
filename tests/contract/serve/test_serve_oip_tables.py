"""Models that files describe, asked by Triton's own client: under their names, by all front ends, after each reload."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from guards.pages import blocks
from tests.serving import CLI, Server
from tests.support import ACTORS, BACKEND, DEADLINE_S, Ledger, settled

pytest.importorskip("httptools")
pytest.importorskip("tritonclient.http")

import gevent
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

TABLES: Final = f"{ACTORS}/oip_tables.py:Tables"

GUIDE: Final = ACTORS.parents[1] / "docs" / "oip.md"

TOML: Final = """
[digits]
method = "Tables.scores"
max_batch_size = 4
inputs.INPUT__0 = { parameter = "pixels", shape = [5] }
outputs.OUTPUT__0 = { shape = [3], labels = ["sum", "most"] }

[told]
method = "Tables.told"
id_to = "request_id"
parameters_to = "options"
headers_to = "heard"
headers = ["X-Tenant", "X-Absent"]

[lengths]
method = "Tables.lengths"
max_batch_size = 8
outputs.COUNT = { datatype = "INT32" }

["größe-100%"]
method = "Tables.combine"
outputs.SUM = { key = "total" }

[pairs]
method = "Tables.combine"
inputs.a = { shape = [2, -1] }
inputs.b = { shape = [2, 2] }

[gone]
method = "Tables.gone"

[narrow]
method = "Tables.scores"
inputs.pixels = { datatype = "FP16" }

[streaming]
method = "Tables.count"
decoupled = false

[wrong]
method = "Tables.wrong"
outputs.y = { datatype = "FP32" }
"""

PBTXT: Final = """
max_batch_size: 4
input { name: "pixels" data_type: TYPE_FP32 dims: [ 5 ] }
output { name: "scores" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" }
instance_group { kind: KIND_GPU count: 2 }
parameters { key: "method" value { string_value: "Tables.scores" } }
parameters { key: "owner" value { string_value: "vision" } }
"""

ROWS: Final = np.arange(10, dtype=np.float32).reshape(2, 5)


class Client:
    """Triton's client of a server, with its token.

    Args:
        server: The server.
    """

    def __init__(self, server: Server) -> None:
        self._headers: Final = {"authorization": f"Bearer {server.token}"}
        self._client: Final[Any] = triton.InferenceServerClient(f"127.0.0.1:{server.port}")

    def __getattr__(self, name: str) -> Any:
        made = getattr(self._client, name)

        def ask(*args: Any, headers: dict[str, str] | None = None, **more: Any) -> Any:
            return made(*args, headers={**self._headers, **(headers or {})}, **more)

        return made if name == "close" else ask


def tensor(name: str, datatype: str, values: Any) -> Any:
    """Return an input with its elements."""
    made = triton.InferInput(name, list(values.shape), datatype)
    made.set_data_from_numpy(values)
    return made


def texts(*values: str) -> Any:
    """Return elements of BYTES."""
    return np.array([each.encode() for each in values], object)


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    """Of all tests here."""
    with Ledger() as counting:
        yield counting
        gevent.get_hub().destroy(destroy_loop=True)  # the client's threads and descriptors


@pytest.fixture(scope="module")
def server(ledger: Ledger) -> Iterator[Server]:
    """A server of three front ends with models of two files."""
    folder = ledger.path / "resnet"
    folder.mkdir()
    (ledger.path / "models.toml").write_text(TOML, encoding="utf-8")
    (folder / "config.pbtxt").write_text(PBTXT, encoding="utf-8")
    (folder / "labels.txt").write_text("all\nbest\nworst\n", encoding="utf-8")
    files = ("--models", ledger.path / "models.toml", "--models", folder / "config.pbtxt")
    with Server(ledger, "--workers", "3", *files, actor=TABLES) as own:
        yield own


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """A client of the server."""
    own = Client(server)
    yield own
    own.close()


@pytest.mark.parametrize("name", ["digits", "resnet"])
def test_a_renamed_model_takes_rows_and_tells_classes_by_their_labels(client: Client, name: str) -> None:
    """By a table, and by a config.pbtxt with a file of labels; a place without a label has none."""
    told = client.get_model_metadata(name)
    (given,), (output,) = told["inputs"], told["outputs"]
    assert (given["datatype"], given["shape"], output["shape"]) == ("FP32", [-1, 5], [-1, 3])
    inputs = [tensor(given["name"], "FP32", ROWS)]
    answer = client.infer(name, inputs)
    expected = np.stack([ROWS.sum(1), ROWS.max(1), ROWS.min(1)], axis=1)
    np.testing.assert_array_equal(answer.as_numpy(output["name"]), expected)
    asked = [triton.InferRequestedOutput(output["name"], class_count=3)]
    classes = client.infer(name, inputs, outputs=asked).as_numpy(output["name"])
    first = [each.decode() for each in classes[0].tolist()]
    labels = {"digits": ["10.000000:0:sum", "4.000000:1:most", "0.000000:2"]}
    assert first == labels.get(name, ["10.000000:0:all", "4.000000:1:best", "0.000000:2:worst"])
    with pytest.raises(InferenceServerException, match="1 to 4 rows, not 5"):
        client.infer(name, [tensor(given["name"], "FP32", np.zeros((5, 5), np.float32))])
    with pytest.raises(InferenceServerException, match=r"has the shape \[-1, 5\], not \[2, 4\]"):
        client.infer(name, [tensor(given["name"], "FP32", np.zeros((2, 4), np.float32))])


def test_id_parameters_and_headers_reach_the_method(client: Client) -> None:
    """Those that the table names; the protocol's own parameters and other headers do not."""
    answer = client.infer(
        "told",
        [tensor("text", "BYTES", texts("hello"))],
        request_id="r-7",
        parameters={"beams": 4, "style": "short", "exact": True},
        timeout=60_000_000,
        headers={"x-tenant": "blue", "x-other": "red"},
    )
    found = [each.decode() for each in answer.as_numpy("output").tolist()]
    assert found == ["hello", "r-7", "beams=4", "exact=True", "style=short", "x-tenant=blue"]


def test_a_row_of_texts_is_an_element_of_a_list(client: Client) -> None:
    """And so is a row of the result, in the datatype of the table."""
    answer = client.infer("lengths", [tensor("texts", "BYTES", texts("a", "four").reshape(2, 1))])
    found = answer.as_numpy("COUNT")
    assert (found.dtype, found.tolist()) == (np.int32, [[1], [4]])


def test_generate_takes_the_shapes_that_are_described(server: Server) -> None:
    """Elements are flat, or nested as an input is, with or without its row."""

    def generated(name: str, **fields: Any) -> Any:
        return server.ask("POST", f"/v2/models/{name}/generate", json.dumps(fields).encode()).json()

    assert generated("pairs", a=[1, 2, 3, 4], b=[1, 1, 1, 1])["total"] == [2.0, 3.0, 4.0, 5.0]
    assert generated("digits", INPUT__0=[1, 2, 3, 4, 5])["OUTPUT__0"] == [15.0, 5.0, 1.0]
    assert generated("pairs", a=[[1, 2], [3, 4]], b=[[1, 1], [1, 1]])["total"] == [2.0, 3.0, 4.0, 5.0]
    assert generated("digits", INPUT__0=[[1, 2, 3, 4, 5]])["OUTPUT__0"] == [15.0, 5.0, 1.0]
    assert "neither flat nor nested" in generated("pairs", a=[[1, 2], [3]], b=[1, 1, 1, 1])["error"]
    assert generated("lengths", texts="hello")["COUNT"] == 5
    assert "its data has 3 elements, and the shape [2, 1] 2" in generated("pairs", a=[1, 2, 3], b=[1, 1, 1, 1])["error"]
    assert "its data has 2 elements, and the shape [1, 1] 1" in generated("lengths", texts=["a", "b"])["error"]


def test_a_name_in_a_path_is_matched_exactly(server: Server, client: Client) -> None:
    """Percent-encoded by the client, whatever characters it has."""
    assert client.is_model_ready("größe-100%")
    given = {name: np.full(1, value, np.float32) for name, value in (("a", 3), ("b", 1))}
    answer = client.infer("größe-100%", [tensor(name, "FP32", each) for name, each in given.items()])
    assert (answer.as_numpy("SUM").tolist(), answer.as_numpy("difference").tolist()) == ([4.0], [2.0])
    for path in ("gr%C3%B6%C3%9Fe-100", "gr%C3%B6%C3%9Fe-100%2525", "GR%C3%B6%C3%9Fe-100%25", "digits%00", "digits%20"):
        assert server.ask("GET", f"/v2/models/{path}").status == 404
    assert server.ask("GET", "/v2/models/%64igits").status == 200


def test_the_configuration_is_that_of_file_and_method(client: Client) -> None:
    """In Triton's names; ignored fields are not there."""
    config = client.get_model_config("resnet")
    assert (config["name"], config["max_batch_size"], config["instance_group"]) == ("resnet", 4, [])
    assert [(each["name"], each["data_type"], each["dims"]) for each in config["input"]] == [
        ("pixels", "TYPE_FP32", [5])
    ]
    assert [(each["name"], each["label_filename"]) for each in config["output"]] == [("scores", "labels.txt")]
    texts_told = {name: each["string_value"] for name, each in config["parameters"].items()}
    assert texts_told == {"owner": "vision", "method": "Tables.scores"}


UNREADY: Final = {
    "gone": (503, "there is no method 'Tables.gone'"),
    "narrow": (400, "input 'pixels' is described as FP16, and the annotation says FP32"),
    "streaming": (400, "described as decoupled = false, and Tables.count is not so"),
}


@pytest.mark.parametrize("name", UNREADY)
def test_a_description_that_does_not_fit_is_not_silently_there(server: Server, client: Client, name: str) -> None:
    """The model is not ready, requests are refused with the reason, and the log has it once, with three front ends."""
    status, why = UNREADY[name]
    assert not client.is_model_ready(name)
    ready = server.ask("GET", f"/v2/models/{name}/ready")
    assert (ready.status, why in ready.json()["error"]) == (503, True)
    body = b'{"inputs":[{"name":"pixels","datatype":"FP16","shape":[1],"data":[1]}]}'
    answer = server.ask("POST", f"/v2/models/{name}/infer", body)
    assert (answer.status, why in answer.json()["error"]) == (status, True)
    assert server.ask("GET", f"/v2/models/{name}/config").status == status
    assert settled(lambda: server.log().count(why) == 1), server.log()


def test_a_result_that_is_not_as_described_is_an_error(client: Client) -> None:
    """The method has run, and its result is another one."""
    with pytest.raises(InferenceServerException, match="it is FP64, and described as FP32"):
        client.infer("wrong", [tensor("x", "FP32", np.ones(1, np.float32))])


def test_all_front_ends_have_the_same_models(server: Server) -> None:
    """Each connection may be another's."""
    names = ["digits", "told", "lengths", "resnet", "wrong", "Tables.scores"]
    for name in names * 6:
        assert server.ask("GET", f"/v2/models/{name}/ready").status == 200
    assert len(server.front_ends()) == 3


def test_what_is_ignored_is_told_once(server: Server) -> None:
    """By the parent, with the reason."""
    assert server.log().count("instance_group is ignored: workers are the pool's") == 1


def test_a_file_that_cannot_be_is_refused_before_anything_starts(ledger: Ledger) -> None:
    """The command ends with the reason, and no process of a pool was started."""
    path = ledger.path / "bad.toml"
    path.write_text("[a]\nmethod = 'A.m'\ninputs.x.shape = [0]\n", encoding="utf-8")
    run_dir = ledger.run_dir("never")
    done = subprocess.run(
        [*CLI, "serve", "--run-dir", str(run_dir), "--actor", TABLES, "--backend", BACKEND, "--models", str(path)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode != 0
    assert f"{path}: model 'a': input 'x': a length of its shape is 0; write 1 or more, or -1 for any" in done.stderr
    assert not Path(run_dir).exists()


ACTOR: Final = """
import numpy as np
from numpy.typing import NDArray
from atomr_mp_workers import Actor, method

class Changing(Actor):
    @method(idempotent=True)
    def {name}(self, x: NDArray[np.{element}]) -> NDArray[np.{element}]:
        return x
"""


def test_each_generation_of_a_method_is_judged_anew(ledger: Ledger) -> None:
    """A model whose method comes by a reload is ready then; the log names one that no longer fits, once each."""
    actor, path = ledger.path / "changing.py", ledger.path / "changing.toml"
    path.write_text("[m]\nmethod = 'Changing.same'\ninputs.x.datatype = 'FP32'\n", encoding="utf-8")

    def write(name: str, element: str) -> None:
        actor.write_text(ACTOR.format(name=name, element=element), encoding="utf-8")

    write("other", "float32")
    options = ("--workers", "3", "--models", path)
    with Server(ledger, *options, actor=f"{actor}:Changing", run_dir="changing") as server:

        def ready() -> bool:
            return all(server.ask("GET", "/v2/models/m/ready").status == 200 for _ in range(9))

        missing = "the model m is not ready: there is no method 'Changing.same'"
        assert settled(lambda: server.log().count(missing) == 1)
        assert not ready()
        write("same", "float32")
        server.process.send_signal(signal.SIGHUP)
        assert settled(ready), server.log()
        write("same", "float64")
        server.process.send_signal(signal.SIGHUP)
        unfit = "input 'x' is described as FP32, and the annotation says FP64"
        assert settled(lambda: server.log().count(unfit) == 1), server.log()
        assert settled(lambda: server.ask("POST", "/v2/models/m/infer", b"{}").status == 400)
        assert server.log().count(missing) == 1


def test_the_guide_s_files_and_program_work(ledger: Ledger) -> None:
    """As its reader saves and runs them: the table, the config.pbtxt, and the client's program."""
    page = blocks(GUIDE)
    endings = {"toml": "toml", "text": "pbtxt"}
    (program,) = [each.code for each in page if each.language == "py"]
    (actor,) = [each for each in page if each.file]
    folder = ledger.path / "read"
    folder.mkdir()
    for name, code in [(actor.file, actor.code)] + [
        (f"models.{endings[each.language]}", each.code) for each in page if each.language in endings
    ]:
        (folder / name).write_text(code, encoding="utf-8")
    files = [each for name in ("models.toml", "models.pbtxt") for each in ("--models", folder / name)]
    with Server(ledger, *files, actor=f"{folder / actor.file}:Digits", run_dir="guide") as server:
        variables = {"ADDRESS": f"127.0.0.1:{server.port}", "TOKEN": server.token}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        (expected,) = re.findall(r"print\(.*\)  # (.+)", program)
        assert " ".join(done.stdout.split()) == expected
        assert server.ask("GET", "/v2/models/resnet/ready").status == 200


def test_a_mounted_application_has_described_models(ledger: Ledger) -> None:
    """The files are read when it is made."""
    fastapi = pytest.importorskip("fastapi.testclient")
    from atomr_mp import errors, serve

    path = ledger.path / "mounted.toml"
    path.write_text("[m]\nmethod = 'Tables.scores'\nmax_batch_size = 2\n", encoding="utf-8")
    with Ledger() as others, others.start(TABLES) as pool:
        client = fastapi.TestClient(serve.app(pool, models=[path]))
        assert settled(lambda: client.get("/v2/models/m/ready").status_code == 200)
        assert client.get("/v2/models/m/config").json()["max_batch_size"] == 2
        with pytest.raises(errors.ConfigurationError, match="is no file"):
            serve.app(pool, models=[str(ledger.path / "none.toml")])

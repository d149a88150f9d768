from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guards.pages import blocks
from tests.support import ACTORS, Ledger, settled

pytest.importorskip("httptools")
pytest.importorskip("fastapi")

from fastapi.testclient import TestClient  # after the look whether it is there

PAGE = Path(__file__).parents[3] / "docs" / "serving.md"


def recipe(ledger: Ledger, name: str, *, starlette: bool = False) -> Path:
    """Write a file that the page shows; of Starlette, with the same lifespan, and without FastAPI's routes."""
    (block,) = [block for block in blocks(PAGE) if block.file == name]
    code = block.code
    if starlette:
        code = code.partition("@app.get")[0].replace("from fastapi import", "from starlette.applications import")
        code = code.replace("FastAPI", "Starlette")
    path = ledger.path / name
    path.write_text(code, encoding="utf-8")
    return path


@contextlib.contextmanager
def mounted(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, *, starlette: bool = False) -> Iterator[TestClient]:
    """Run an application of the page over a pool, which it joins at the start and leaves at the end."""
    words, app_file = recipe(ledger, "words.py"), recipe(ledger, "app.py", starlette=starlette)
    with ledger.start(f"{words}:Words") as pool:
        monkeypatch.setitem(os.environ, "ATOMR_MP_RUN_DIR", str(pool.run_dir))
        before = pool.status().sessions
        with TestClient(load(app_file).app) as client:
            assert pool.status().sessions == before + 1
            yield client
        assert settled(lambda: pool.status().sessions == before)


def test_the_recipe_of_the_page_works(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """In FastAPI: an own route beside what is mounted; the pool is joined at the start and left at the end."""
    with mounted(ledger, monkeypatch) as client:
        assert client.get("/length/hello").json() == 5
        assert client.post("/pool/call/Words.length", json={"word": "four"}).json() == 4
        wrong = client.post("/pool/call/Words.length", json={"word": 4})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (422, "invalid_request")
        assert client.get("/pool/health/ready").status_code == 200
        assert client.get("/pool/openapi.json").status_code == 200
        assert client.get("/pool/docs").headers["content-type"].startswith("text/html")


def test_the_recipe_for_starlette_works_too(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls, streams, and the pool is left at the end."""
    with mounted(ledger, monkeypatch, starlette=True) as client:
        assert client.post("/pool/call/Words.length", json=["four"]).json() == 4
        assert client.get("/pool/health/ready").status_code == 200


def test_a_token_can_be_asked_for_there_too(ledger: Ledger) -> None:
    """Hosts and origins can be checked as well."""
    with ledger.start() as pool:
        client = TestClient(atomr_mp_serve().app(pool, tokens=["a-token-of-the-application"], allowed_hosts=["ours"]))
        assert client.get("http://ours/openapi.json").status_code == 401
        token = {"authorization": "Bearer a-token-of-the-application"}
        assert client.get("http://ours/openapi.json", headers=token).status_code == 200
        assert client.get("http://theirs/openapi.json", headers=token).status_code == 403


def test_files_and_foreign_pages_come_in_by_any_server(ledger: Ledger) -> None:
    """A form, and a raw body with arguments in the address; an origin that is named, and one that is not."""
    with ledger.start(f"{ACTORS}/uploaded.py:Uploaded") as pool:
        client = TestClient(atomr_mp_serve().app(pool, cors_origins=["https://app.example"]))
        raw = {"content-type": "image/png", "accept": "application/octet-stream"}
        assert client.post("/call/Uploaded.turned?times=2", content=b"ab", headers=raw).content == b"baba"
        files = {"file": ("a.png", b"abc", "image/png")}
        own = client.post("/call/Uploaded.shown", files=files, headers={"origin": "https://app.example"})
        assert (own.json()[0], own.headers["vary"]) == (["a.png", "image/png", 3], "Origin")
        assert own.headers["access-control-allow-origin"] == "https://app.example"
        foreign = client.post("/call/Uploaded.shown", files=files, headers={"origin": "https://other.example"})
        assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "origin_not_allowed")


def test_a_lost_pool_is_told_as_such(ledger: Ledger) -> None:
    """An application that has given its pool away sees 503, and readiness says so too."""
    with ledger.start() as pool:
        client = TestClient(atomr_mp_serve().app(pool))
        assert client.get("/health/ready").status_code == 200
        pool.close()
        answer = client.post("/call/Probe.echo", json={"value": 1})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "pool_lost")
        assert client.get("/health/ready").status_code == 503


def atomr_mp_serve() -> Any:
    """Return the module, which `import atomr_mp` does not bring."""
    import atomr_mp.serve

    return atomr_mp.serve


def load(path: Path) -> Any:
    """Import a file."""
    spec = importlib.util.spec_from_file_location("recipe_app", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

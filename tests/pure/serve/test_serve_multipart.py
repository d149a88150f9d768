from __future__ import annotations

import contextlib

import httpx
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from atomr_mp.protocol.messages.control import ActorSpec
from atomr_mp.serve.http.limits import Limits
from atomr_mp.serve.problems import Problem
from atomr_mp.serve.values import schemas, uploads
from atomr_mp.serve.values.multipart import FormPart, parts_of
from atomr_mp_workers.loading import load
from tests.support import ACTORS

PLANS = {
    each.info.name: schemas.plan_of(each.name, each.info)
    for each in load(ActorSpec("Uploaded", f"{ACTORS}/uploaded.py:Uploaded")).methods
}

TYPE = b'multipart/form-data; boundary="a b"'

NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=9)

CONTENTS = st.binary(max_size=60) | st.lists(st.sampled_from([b"\r", b"\n", b"--", b"a b", b"\r\n--"])).map(b"".join)


def body_of(*parts: tuple[bytes, bytes], end: bytes = b"--\r\n") -> bytes:
    """Return a form with parts, each its headers and its content."""
    return b"".join(b"--a b\r\n%b\r\n\r\n%b\r\n" % part for part in parts) + b"--a b" + end


def as_sent(name: str) -> str:
    """Return a name as browsers, and the client's library, write it."""
    return name.replace('"', "%22")


def part(name: str, content: bytes, filename: str | None = None, content_type: str = "") -> FormPart:
    """Return a part."""
    return FormPart(name, memoryview(content), filename, content_type)


@hypothesis.given(st.lists(st.tuples(NAMES, st.none() | NAMES, CONTENTS), min_size=1, max_size=5))
def test_what_a_client_has_put_into_a_form_comes_out_of_it(given: list[tuple[str, str | None, bytes]]) -> None:
    """Names and contents come as they were, whatever is in them; the client's library is not ours."""
    files = [(name, (filename, content, "a/b" if filename else None)) for name, filename, content in given]
    request = httpx.Request("POST", "http://localhost", files=files)
    found = parts_of(request.read(), request.headers["content-type"].encode(), len(given))
    for each, (name, filename, content) in zip(found, given, strict=True):
        assert (each.name, each.filename) == (as_sent(name), None if filename is None else as_sent(filename))
        assert bytes(each.content) == content


@hypothesis.given(CONTENTS, st.binary(max_size=9), st.integers(0, 300))
def test_no_bytes_make_anything_but_a_form_or_a_refusal(content: bytes, noise: bytes, at: int) -> None:
    """Cut or changed anywhere, a form has parts that lie within it, or is refused as one."""
    body = body_of((b'Content-Disposition: form-data; name="x"; filename="y"', content), (b"A: b", content))
    changed = body[:at] + noise + body[at + 1 :]
    with contextlib.suppress(Problem):
        assert sum(len(each.content) for each in parts_of(changed, TYPE, 2)) < len(changed)


@pytest.mark.parametrize(
    ("body", "content_type", "said"),
    [
        (b"", TYPE, "not in it"),
        (body_of(), b"multipart/form-data", "no usable boundary"),
        (body_of(), b"multipart/form-data; boundary=" + b"x" * 71, "no usable boundary"),
        (body_of(), b"multipart/form-data; boundary=x; boundary=y", "cannot be read"),
        (body_of((b"", b"")), TYPE, "wrong or repeated header"),
        (body_of((b"Content-Disposition: form-data", b"")), TYPE, "lacks its header"),
        (body_of((b'Content-Disposition: file; name="x"', b"")), TYPE, "lacks its header"),
        (body_of((b'Content-Disposition: form-data; name="x', b"")), TYPE, "cannot be read"),
        (body_of((b'Content-Disposition: form-data; name="\xff"', b"")), TYPE, "no UTF-8"),
        (body_of((b"A: b\r\nA: c", b"")), TYPE, "repeated"),
        (body_of((b"A: b\r\n folded", b"")), TYPE, "wrong or repeated header"),
        (
            body_of((b'Content-Disposition: form-data; name="x"\r\nContent-Transfer-Encoding: base64', b"")),
            TYPE,
            "as it is",
        ),
        (body_of((b'Content-Disposition: form-data; name="x"', b""), end=b""), TYPE, "end of its line"),
        (body_of(end=b"x\r\n"), TYPE, "end of its line"),
        (b"--a b\r\nA: b", TYPE, "within the headers"),
        (b'--a b\r\nContent-Disposition: form-data; name="x"\r\n\r\n', TYPE, "without its last boundary"),
        (body_of((b"A: " + b"b" * 3000, b"")), TYPE, "more than 2048"),
        (body_of(*[(b'Content-Disposition: form-data; name="x"', b"")] * 3), TYPE, "more than 2 parts"),
    ],
)
def test_what_is_no_form_is_told_why(body: bytes, content_type: bytes, said: str) -> None:
    """A refusal says what is wrong."""
    with pytest.raises(Problem, match=said):
        parts_of(body, content_type, 2)


def test_what_comes_before_and_behind_a_form_is_nothing() -> None:
    """As RFC 2046 has it; blanks behind a boundary are none of the content."""
    form = body_of((b'content-disposition:form-data;name="a\\"b"', b"\r\n--a"))
    found = parts_of(b"before\r\n" + form.replace(b"--a b\r\n", b"--a b \t\r\n", 1) + b"behind", TYPE, 1)
    assert [(each.name, bytes(each.content), each.filename) for each in found] == [('a"b', b"\r\n--a", None)]


def test_a_part_becomes_what_the_annotation_says() -> None:
    """Files are bytes, arrays or uploads; a field is a text where a text is taken, and JSON elsewhere."""
    limits = Limits()
    turned = [part("content", b"ab", "x.png"), part("times", b"2"), part("mark", b'"2"')]
    assert uploads.of_form(PLANS["turned"], turned, limits) == {"content": b"ab", "times": 2, "mark": '"2"'}
    shown = [
        part("more", b"1", "m"),
        part("file", b"ab", "x.png", "image/png"),
        part("more", b"", "n"),
        part("options", b'{"a": 1}'),
    ]
    assert uploads.of_form(PLANS["shown"], shown, limits) == {
        "file": {"content": b"ab", "filename": "x.png", "content_type": "image/png"},
        "more": [
            {"content": content, "filename": name, "content_type": ""} for content, name in ((b"1", "m"), (b"", "n"))
        ],
        "options": {"a": 1},
    }
    for picture in (part("picture", b"\1\2", "x"), part("picture", b"[1, 2]")):
        found = uploads.of_form(PLANS["pixels"], [picture, part("weights", b"[0.5]")], limits)
        assert (found["picture"].dtype, found["picture"].tolist()) == (np.uint8, [1, 2])
        assert found["weights"].tolist() == [0.5]


@pytest.mark.parametrize(
    ("parts", "limits", "said"),
    [
        ([part("content", b"", "x"), part("content", b"", "y")], Limits(), "twice"),
        ([part("times", b"two")], Limits(), "field times: the body is no JSON"),
        ([part("mark", b"\xff")], Limits(), "no text"),
        ([part("mark", b"abc"), part("times", b"1")], Limits(json_bytes=3), "more than 3 bytes"),
        ([part("times", b"[[]]"), part("other", b"")], Limits(json_containers=1), "lists and objects"),
    ],
)
def test_fields_that_do_not_fit_are_refused(parts: list[FormPart], limits: Limits, said: str) -> None:
    """The limits of JSON hold for all fields together."""
    with pytest.raises(Problem, match=said):
        uploads.of_form(PLANS["turned"], parts, limits)


def test_other_arguments_of_a_raw_body_are_in_the_address() -> None:
    """By name, as in a form; the body's own parameter cannot be there too."""
    limits, plan = Limits(form_parts=2), PLANS["turned"]
    found = uploads.of_raw(plan, b"ab", b"image/png", b"times=3&mark=a%20b", limits)
    assert found == {"content": b"ab", "times": 3, "mark": "a b"}
    for query, said in ((b"content=x", "both"), (b"a=1&b=2&c=3", "cannot be read"), (b"mark=%ff", "cannot be read")):
        with pytest.raises(Problem, match=said):
            uploads.of_raw(plan, b"ab", b"image/png", query, limits)


def test_a_raw_body_is_for_the_one_parameter_that_takes_a_file() -> None:
    """With two, or none, it would be unknown which one is meant."""
    assert {name: plan.raw for name, plan in PLANS.items()} == {
        "turned": "content",
        "pixels": "picture",
        "shown": "file",
        "both": "",
    }

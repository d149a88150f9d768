"""What is compiled, by which options, under which key, and what is shown of the compiler's log."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp_workers.compiling import exchange, jobs, log_lines, options
from atomr_mp_workers.compiling.jobs import CodeKind, CompileJob, LinkInput, LinkJob, check
from atomr_mp_workers.compiling.keys import key_of
from atomr_mp_workers.compiling.process import seccomp
from atomr_mp_workers.compiling.toolkits import find, installed_at, wheels_of
from tests.in_turn import in_turn

JOB: Final = CompileJob("x", "sm_90", CodeKind.CUBIN, ("k<float>",), ("--fmad=true",), {"a.h": "1", "b.h": "2"}, "k.cu")
LINK: Final = LinkJob((LinkInput("a", CodeKind.LTOIR, b"1"), LinkInput("b", CodeKind.PTX, b"2")), "sm_90", ("-O=3",))


@in_turn(
    "given_option, canonical",
    [
        ("-lineinfo", "--generate-line-info"),
        ("--generate-line-info", "--generate-line-info"),
        ("-DA", "--define-macro=A"),
        ("-D=A", "--define-macro=A"),
        ("--define-macro=F(x, y)=x + y", "--define-macro=F(x, y)=x + y"),
        ("-DX=1 -I/etc", "--define-macro=X=1 -I/etc"),
        ("-UA", "--undefine-macro=A"),
        ("-std=c++17", "--std=c++17"),
        ("-Xptxas=-O2", "--ptxas-options=-O2"),
        ("--maxrregcount=64", "--maxrregcount=64"),
        ("-diag-suppress=177,1105", "--diag-suppress=177,1105"),
    ],
)
def test_an_option_has_one_form(given_option: str, canonical: str) -> None:
    """The compiler gets it, and the key has it; it is its own canonical form."""
    assert options.COMPILING.canonical([given_option]) == (canonical,)
    assert options.COMPILING.canonical([canonical]) == (canonical,)


@in_turn(
    "given_option, says",
    [
        ("-I/etc", "not one of those"),
        ("--include-path=/etc", "send the text as one of `headers`"),
        ("-include=/etc/passwd", "send the text as one of `headers`"),
        ("--pre-include=/etc/passwd", "send the text as one of `headers`"),
        ("--create-pch=/tmp/x", "it would write a file"),
        ("--time=/tmp/x", "it would write a file"),
        ("-fdevice-time-trace=/tmp/x", "it would write a file"),
        ("-arch=sm_90", "name it as `arch`"),
        ("-dlto", "linked with other codes, which `link` names"),
        ("--split-compile=0", "not one of those"),
        ("--options-file=/tmp/x", "not one of those"),
        ("-@/tmp/x", "not one of those"),
    ],
)
def test_an_option_outside_the_list_is_refused_in_words(given_option: str, says: str) -> None:
    """None that names a file, a folder or a number of threads gets to the compiler."""
    with pytest.raises(errors.Unsupported, match=re.escape(says)):
        options.COMPILING.canonical([given_option])


@in_turn(
    "given_option",
    [
        *("lineinfo", "/etc/passwd", "@file", "", "-D", "-D1", "-DA=\nB", "-UA=1", "--fmad=maybe", "--fmad", "-G=1"),
        *("-Xptxas=--options-file=/etc/passwd", "-Xptxas=-O2 -o /tmp/x", "--maxrregcount=-1", "-D" + "A" * 5000),
    ],
)
def test_a_wrong_value_is_refused_in_words(given_option: str) -> None:
    """The error says what the option takes."""
    with pytest.raises(errors.InvalidRequest, match="nothing was compiled"):
        options.COMPILING.canonical([given_option])


@given(st.lists(st.text(max_size=30), max_size=4))
def test_whatever_is_given_as_options_is_refused_or_in_the_list(given_options: list[str]) -> None:
    """No text gets through that does not begin with the name of an allowed option."""
    for allowed in (options.COMPILING, options.LINKING):
        try:
            passed = allowed.canonical(given_options)
        except (errors.InvalidRequest, errors.Unsupported):
            continue
        assert all(each.partition("=")[0] in allowed.names for each in passed)


@in_turn(
    "changes, says",
    [
        ({"architecture": "sm_9"}, "is not a name such as"),
        ({"architecture": "sm_90\n"}, "is not a name such as"),
        ({"architecture": "compute_90"}, "'compute_90' stands for many: name a real one, such as 'sm_90'"),
        ({"source": "a\0b"}, "a NUL at character 1"),
        ({"source": "\udcff"}, "not text"),
        ({"source": "x" * (jobs.MAX_SOURCE_CHARS + 1)}, "more than"),
        ({"headers": {"/etc/passwd": ""}}, "not a name of a file"),
        ({"headers": {"a/../../b": ""}}, "not a name of a file"),
        ({"headers": {"a.h": "\0"}}, "NUL"),
        ({"headers": {f"{i}.h": "" for i in range(300)}}, "300 headers"),
        ({"headers": {f"{i}.h": "x" * 2**20 for i in range(9)}}, "the headers have"),
        ({"name": "k(1).cu"}, "not a name of a file"),
        ({"names": ("k\n#include </etc/passwd>",)}, "on one line"),
        ({"names": ("",)}, "not a name expression"),
        ({"names": ("k", "k")}, "twice"),
        ({"names": tuple(f"k{i}" for i in range(2000))}, "2000 names"),
        ({"options": ("-w",) * 300}, "300 options"),
    ],
)
def test_a_wrong_source_is_refused_before_a_process_starts(changes: dict[str, Any], says: str) -> None:
    """In words that name what is wrong."""
    with pytest.raises(errors.InvalidRequest, match=re.escape(says)):
        check(msgspec.structs.replace(JOB, **changes))


@in_turn(
    "changes, says",
    [
        ({"inputs": ()}, "1 to 64 inputs"),
        ({"inputs": (LinkInput("a", CodeKind.PTX, b""),)}, "empty"),
        (
            {"inputs": (LinkInput("a.cubin", CodeKind.CUBIN, b"\x7fELF".ljust(16) + b"\2\0"),)},
            "a.cubin is not relocatable",
        ),
        ({"inputs": (LinkInput("../a", CodeKind.PTX, b"1"),)}, "not a name of a file"),
        ({"architecture": "compute_90"}, "'sm_90' is"),
        ({"options": ("-lineinfo=1",)}, "takes no value"),
    ],
)
def test_a_wrong_link_is_refused_before_a_process_starts(changes: dict[str, Any], says: str) -> None:
    """In words that name what is wrong."""
    with pytest.raises(errors.InvalidRequest, match=re.escape(says)):
        check(msgspec.structs.replace(LINK, **changes))


def test_every_part_of_a_job_counts_for_its_key() -> None:
    """Another source, option, name, header, architecture, kind, toolkit: another key. The headers' order is none."""
    others = [
        msgspec.structs.replace(JOB, **change)
        for change in (
            {"source": "y"},
            {"architecture": "sm_90a"},
            {"kind": CodeKind.PTX},
            {"names": ()},
            {"names": ("k<int>",)},
            {"options": ()},
            {"headers": {"a.h": "1"}},
            {"headers": {"a.h": "2", "b.h": "1"}},
            {"headers": {"a.h": "12", "b.h": ""}},
            {"name": "l.cu"},
        )
    ]
    links = [
        LINK,
        *(msgspec.structs.replace(LINK, **change) for change in ({"inputs": LINK.inputs[::-1]}, {"options": ()})),
    ]
    jobs_of_all: list[jobs.Job] = [JOB, *others, *links]
    every = [key_of(each, "t") for each in jobs_of_all] + [key_of(JOB, "u")]
    assert len(set(every)) == len(every)
    assert key_of(JOB, "t") == key_of(msgspec.structs.replace(JOB, headers={"b.h": "2", "a.h": "1"}), "t")
    assert all(re.fullmatch("[0-9a-f]{64}", each) for each in every)


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), max_size=4), st.text(max_size=20))
def test_two_jobs_have_one_key_only_if_they_are_equal(pairs: list[tuple[str, str]], source: str) -> None:
    """Moving a character from one part to the next is another job."""
    headers = dict(pairs)
    job = CompileJob(source, "sm_90", headers=headers)
    for name, text in headers.items():
        moved = {**headers, name: text + "x"}
        assert key_of(CompileJob(source, "sm_90", headers=moved), "t") != key_of(job, "t")
        rest = {other: each for other, each in headers.items() if other != name}
        assert key_of(CompileJob(source + text, "sm_90", headers=rest), "t") != key_of(job, "t")


LOG: Final = """\
/kit/include/cuda_fp16.h(12): error: expected a ";"
  root:x:0:0:root:/root:/bin/bash
  ^
my/a.h(3): catastrophic error: cannot open source file "b.h"
root:x:0:0:secret
          detected during:
            instantiation of class "A<N> [with N=199]" at line 1
kernel.cu(2): warning #177-D: variable "u" was declared\tbut\x1b[31m never referenced
At end of source: error: expected a "}"
ptxas error   : Entry function 'k' uses too much shared data
nvrtc: error: unrecognized option --gurk found
  hidden(1): error: a line of a file
2 errors detected in the compilation of "kernel.cu".
"""


def test_only_messages_of_a_log_are_kept() -> None:
    """No line of a file is, nor the toolkit's folders, nor a control character."""
    assert log_lines.messages(LOG, 10_000, ["/kit/include"]).split("\n") == [
        'cuda_fp16.h(12): error: expected a ";"',
        'my/a.h(3): catastrophic error: cannot open source file "b.h"',
        'kernel.cu(2): warning #177-D: variable "u" was declared?but?[31m never referenced',
        'At end of source: error: expected a "}"',
        "ptxas error   : Entry function 'k' uses too much shared data",
        "nvrtc: error: unrecognized option --gurk found",
    ]


@given(st.text(), st.integers(100, 2000))
def test_whatever_a_log_has_its_messages_are_bounded_and_printable(log: str, most: int) -> None:
    """The compiler's process may have been taken over by its source."""
    for text in (log, "a(1): error: " + log, "\n".join(f"a({i}): error: {log}" for i in range(200))):
        shown = log_lines.messages(text, most)
        assert len(shown) <= most
        assert all(each.isprintable() for each in shown.split("\n"))


def test_messages_that_have_no_room_are_counted() -> None:
    """The last line says how many are left out."""
    shown = log_lines.messages("\n".join(f"a({i}): error: wrong" for i in range(1000)), 500).split("\n")
    assert shown[0] == "a(0): error: wrong"
    assert shown[-1] == f"[{1000 - (len(shown) - 1)} more messages]"


def test_errors_have_room_before_warnings() -> None:
    """In the log's order; also in a log that is too long for the process to send."""
    warnings = [f"a({number}): warning: an error of {'y' * 900}" for number in range(40)]
    error = "a(99): error: oops"
    shown = log_lines.messages("\n".join([*warnings, error, *warnings]), 5000).split("\n")
    assert shown[:-1] == [*warnings[: len(shown) - 2], error]
    assert shown[-1] == f"[{81 - len(shown) + 1} more messages]"
    cut = exchange.bounded("\n".join(["  code"] * 10**6 + [error]))
    assert exchange.MAX_RAW_LOG_CHARS - 10 < len(cut) <= exchange.MAX_RAW_LOG_CHARS
    assert log_lines.messages(cut, 5000) == error
    assert all(line in {"", "  code", error} or "  code".startswith(line) for line in cut.split("\n"))
    assert sum(map(log_lines.is_error, LOG.split("\n"))) > 3


@given(st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_a_protocol_error(data: bytes) -> None:
    """The worker reads them from a process that it does not trust."""
    try:
        exchange.ANSWER.decode(data)
    except errors.ProtocolError:
        return


@in_turn(
    "answer",
    [
        exchange.CodeAnswer(b"", {}, ""),
        exchange.CodeAnswer(b"1", {"k": ""}, ""),
        exchange.CodeAnswer(b"1", {"k": "a\nb"}, ""),
        exchange.CodeAnswer(b"1", {"k": "a" * 20000}, ""),
        exchange.RefusedAnswer("", "x" * (exchange.MAX_RAW_LOG_CHARS + 1)),
    ],
)
def test_an_answer_out_of_bounds_is_a_protocol_error(answer: exchange.Answer) -> None:
    """Empty code, names that are no names, endless texts."""
    with pytest.raises(errors.ProtocolError):
        exchange.ANSWER.decode(exchange.ANSWER.encode(answer))


def test_each_call_of_the_filter_has_a_number_of_its_own() -> None:
    """On each architecture, and below the first number that the filter refuses as a whole."""
    for column in (0, 1):
        numbers = [each[column] for each in seccomp._CALLS.values() if each[column] >= 0]
        assert len(set(numbers)) == len(numbers)
        assert max(numbers) < seccomp._NEWER
        assert len(seccomp._program(column, seccomp._MACHINES["x86_64"][1], 1)) % 8 == 0


def installation(root: Path, major: int, version: int, *, wheels: bool = False) -> None:
    """Make files like those of a toolkit."""
    lib, include = ("cu13/lib", "cu13/include") if wheels else ("lib64", "include")
    (root / lib).mkdir(parents=True)
    (root / include / "cccl").mkdir(parents=True)
    for name in (f"libnvrtc.so.{major}", f"libnvrtc-builtins.so.{major}.1", f"libnvJitLink.so.{major}"):
        (root / lib / name).write_bytes(b"not a library")
    (root / include / "cuda_runtime_api.h").write_text(f"// \n#define CUDART_VERSION  {version}\n", encoding="utf-8")


def test_the_latest_toolkit_that_the_driver_bears_is_found_with_its_own_headers(tmp_path: Path) -> None:
    """Headers of another major version are not its."""
    installation(tmp_path / "nvidia", 13, 13010, wheels=True)
    installation(tmp_path / "cuda", 12, 12040)
    places = [wheels_of(tmp_path / "nvidia"), installed_at(tmp_path / "cuda")]
    newest, older = find(places=places), find(12, places=places)
    assert newest
    assert older
    assert newest.version == (13, 1)
    assert newest.includes == (tmp_path / "nvidia/cu13/include", tmp_path / "nvidia/cu13/include/cccl")
    assert older.nvrtc == tmp_path / "cuda/lib64/libnvrtc.so.12"
    assert older.includes == (tmp_path / "cuda/include", tmp_path / "cuda/include/cccl")
    assert find(11, places=places) is None
    assert find(places=[]) is None


def test_headers_are_those_with_cccl_if_there_are_some(tmp_path: Path) -> None:
    """Those of half precision and cooperative groups include it; wheels may be installed without."""
    installation(tmp_path / "nvidia", 13, 13010, wheels=True)
    installation(tmp_path / "cuda", 13, 13000)
    (tmp_path / "cuda/include/cccl/nv").mkdir()
    (tmp_path / "cuda/include/cccl/nv/target").touch()
    found = find(places=[wheels_of(tmp_path / "nvidia"), installed_at(tmp_path / "cuda")])
    assert found
    assert found.nvrtc == tmp_path / "nvidia/cu13/lib/libnvrtc.so.13"
    assert found.includes == (tmp_path / "cuda/include", tmp_path / "cuda/include/cccl")


def test_another_build_or_another_header_is_another_toolkit(tmp_path: Path) -> None:
    """The digest is part of every key. CCCL, which is installed by itself, has its headers in folders of folders."""
    installation(tmp_path / "cuda", 13, 13010)
    digests = []
    for change in ("", "lib64/libnvrtc.so.13", "lib64/libnvJitLink.so.13", "include/new.h", "include/cccl/cuda/std/x"):
        if change:
            (tmp_path / "cuda" / change).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "cuda" / change).write_bytes(b"not a library either")
        found = find(places=[installed_at(tmp_path / "cuda")])
        assert found
        digests.append(found.digest)
    assert len(set(digests)) == len(digests)

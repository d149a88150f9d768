"""Errors of callers, in their own words, from a real pool and the command line."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.pool import Pool
from atomr_mp.startup.config import gather
from atomr_mp.supervision.settings import PoolSettings
from tests.support import BACKEND, DEADLINE_S

ACTOR = """
from atomr_mp_workers import Actor, method

class Words(Actor):
    @method
    def length(self, word: str) -> int:
        return len(word)

    @method
    def cut(self, word: str, at: int = 1) -> str:
        return word[:at]
"""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A pool of one device, for all tests here: none of them ends a worker."""
    file = tmp_path_factory.mktemp("words") / "words_of_callers.py"
    file.write_text(ACTOR)
    with atomr_mp.start(actors=f"{file}:Words", gpus=1, backend=BACKEND) as pool:  # type: ignore[arg-type]
        yield pool


@pytest.mark.parametrize(
    ("method", "args", "kwargs", "says"),
    [
        ("length", ("one", "two"), {}, "length(word) takes 1 argument, got 2"),
        ("length", (), {}, "length(word) takes 1 argument, got 0"),
        ("cut", (), {}, "cut(word, at) takes from 1 to 2 arguments, got 0"),
        ("length", (), {"wrd": "one"}, "length(word) has no argument wrd; did you mean word?"),
        ("cut", (), {"at": 1}, "cut(word, at) needs word"),
        ("length", ("one",), {"device": 0}, "length(word) has no argument device; use pool.actor(name, device=)"),
        ("cut", ("one", 2, 3), {"at": 1}, "cut(word, at) takes at most 2 arguments, got 3"),
        ("length", (3,), {}, "Expected `str`, got `int` - at `word`"),
        ("cut", (), {"word": "one", "at": "two"}, "Expected `int`, got `str` - at `at`"),
    ],
)
def test_a_wrong_call_is_told_as_the_caller_has_written_it(
    pool: Pool, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], says: str
) -> None:
    """Whichever process finds out."""
    with pytest.raises(errors.InvalidRequest) as caught:
        getattr(pool.actor("Words"), method)(*args, **kwargs).result()
    assert says in caught.value.message


def test_names_that_are_misspelt_say_what_they_may_mean(pool: Pool) -> None:
    """Of requests, actors, and libraries."""
    with pytest.raises(errors.InvalidRequest, match=r"no request 'Words.lenght'; did you mean Words.length\?"):
        pool.call("Words.lenght", "one")
    with pytest.raises(errors.InvalidRequest, match=r"no request 'Words.lenght'; did you mean Words.length\?"):
        pool.map("Words.lenght", ["one"])
    with pytest.raises(errors.InvalidRequest, match=r"no actor 'Word'; did you mean Words\?"):
        pool.actor("Word")
    with pytest.raises(AttributeError, match=r"no request 'lenght'; did you mean length\?"):
        pool.actor("Words").lenght("one")
    with pytest.raises(AttributeError, match=r"has no 'blass'; did you mean blas\?"):
        _ = pool.device().blass


def test_a_setting_that_is_misspelt_says_what_it_may_mean(tmp_path: Path) -> None:
    """By keyword, in a file, and on the command line."""
    says = r"there is no setting 'max_restart'; did you mean max_restarts\?"
    with pytest.raises(errors.ConfigurationError, match=f"^the settings: {says}"):
        atomr_mp.start(max_restart=3)
    file = tmp_path / "pool.toml"
    file.write_text("max_restart = 3\n")
    with pytest.raises(errors.ConfigurationError, match=f"^{file}: {says}"):
        gather(file, {})
    done = cli("start", "--set", "max_restart=3")
    assert "there is no setting 'max_restart'; did you mean max_restarts?" in done.stderr
    assert done.returncode == 1
    assert all(
        "restart" not in field.name or field.name == "max_restarts" for field in msgspec.structs.fields(PoolSettings)
    )


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as a module of the package."""
    return subprocess.run(
        [sys.executable, "-m", "atomr_mp", *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["stauts"], "did you mean status?"),
        (["status", "--jsn"], "unrecognized arguments: --jsn; did you mean --json?"),
        (["status", "--jso"], "unrecognized arguments: --jso; did you mean --json?"),
        (["start", "--standb=hot"], "unrecognized arguments: --standb=hot; did you mean --standby?"),
        (["start", "--standby", "hott"], "did you mean hot?"),
        (["resident", "lst"], "did you mean list?"),
        (["resident", "list", "--jso"], "unrecognized arguments: --jso; did you mean --json?"),
        (["--vers"], "--vers"),
    ],
)
def test_options_are_not_abbreviated_and_what_is_misspelt_is_told(arguments: list[str], says: str) -> None:
    """An abbreviation may mean something else one day."""
    done = cli(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in done.stderr


def test_the_version_is_told_by_an_option_too() -> None:
    """As most programs do."""
    done = cli("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"atomr-mp {atomr_mp.__version__}\n", "")


ODD: Final = b"odd\xff\xc3"
"""Bytes of an argument that are no text."""


COMMANDS: Final = [
    [b"config", b"--set", b"backend=" + ODD],
    [b"config", b"--set", ODD + b"=1"],
    [b"config", b"--set", b"actors=" + ODD],
    [b"config", b"--config", ODD],
    [b"config", b"--pool", ODD],
    [b"status", b"--run-dir", ODD],
    [b"status", b"--json", b"--pool", ODD],
    [b"logs", b"--run-dir", ODD],
    [b"events", b"--run-dir", ODD],
    [b"start", b"--backend", b"host", b"--actor", ODD],
    [b"map", ODD, b"--run-dir", ODD, b"--input", ODD, b"--output", ODD],
    [b"libraries", ODD],
    [ODD],
]
"""Arguments that have such bytes in any place."""


@pytest.mark.parametrize(
    ("arguments", "encoding"),
    list(zip(COMMANDS, itertools.cycle(("utf-8", "ascii")), strict=False)),
    ids=lambda each: each if isinstance(each, str) else b" ".join(each).decode("ascii", "replace"),
)
def test_a_command_prints_whatever_characters_it_was_given(
    arguments: list[bytes], encoding: str, tmp_path: Path
) -> None:
    """File names may have any bytes. Bytes that are no text are shown as escapes, and no traceback appears."""
    found = subprocess.run(
        [sys.executable, "-m", "atomr_mp", *arguments],
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": encoding, "ATOMR_MP_RUN_DIR": str(tmp_path / "run")},
        timeout=DEADLINE_S,
        check=False,
    )
    assert b"Traceback" not in found.stderr, found.stderr.decode("utf-8", "replace")
    assert found.stdout + found.stderr

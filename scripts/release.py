"""What `scripts/release` checks and shows: the files of a wheel and an sdist, and the wheel in a fresh environment."""

from __future__ import annotations

import contextlib
import email.message
import email.parser
import hashlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
DEADLINE_S: Final = 60.0

NOT_SHIPPED: Final = (".ci/",)
"""Folders of the checkout that no archive has, see `tool.hatch.build` in pyproject.toml."""

SHIPPED: Final = {"atomr_mp": "atomr_mp", "workers/atomr_mp_workers": "atomr_mp_workers"}
"""The wheel's packages by their folders in the checkout."""

ACTOR: Final = """
from atomr_mp_workers import Actor, method

class Words(Actor):
    @method(idempotent=True)
    def length(self, word: str) -> int:
        return len(word)
"""


def main(command: str, *arguments: str) -> None:
    """Run a step: `files BUILT`, `smoke CHECKOUT` or `show FOLDER FILE...`."""
    if command == "files":
        check_files(Path(arguments[0]))
    elif command == "smoke":
        smoke(Path(arguments[0]))
    elif command == "show":
        for file in sorted(arguments[1:]):
            show(Path(arguments[0], Path(file).name))
        print("release: nothing was published")


def check_files(built: Path) -> None:
    """Compare an sdist and a wheel with what git knows; end with a message if they differ."""
    known = known_files()
    (sdist,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    with tarfile.open(sdist) as archive:
        inside = {str(PurePosixPath(*PurePosixPath(each.name).parts[1:])) for each in archive if not each.isdir()}
    _compare(sdist.name, inside - {"PKG-INFO"}, set(known))
    with zipfile.ZipFile(wheel) as archive_of_wheel:
        names = {name for name in archive_of_wheel.namelist() if ".dist-info/" not in name}
    _compare(wheel.name, names, packaged(known))
    print(f"release: {sdist.name} and {wheel.name} have the files of git, {len(inside)} and {len(names)}")


def known_files() -> list[str]:
    """Return the files of git that an sdist has.

    Raises:
        CalledProcessError: This is no checkout by git.
    """
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted(name for name in listed.split("\0") if name and not name.startswith(NOT_SHIPPED))


def packaged(known: list[str]) -> set[str]:
    """Return the files that a wheel has, by their names there."""
    return {
        package + name.removeprefix(folder)
        for folder, package in SHIPPED.items()
        for name in known
        if name.startswith(f"{folder}/")
    }


def _compare(archive: str, inside: set[str], known: set[str]) -> None:
    if missing := sorted(known - inside):
        sys.exit(f"release: {archive} lacks {', '.join(missing[:10])}")
    if foreign := sorted(inside - known):
        sys.exit(f"release: {archive} has files that git does not know: {', '.join(foreign[:10])}")


def smoke(checkout: Path) -> None:
    """Use the package of this environment: the version, and an actor that is served and answers."""
    import atomr_mp

    if Path(atomr_mp.__file__).resolve().is_relative_to(checkout):
        sys.exit("release: the package is not the wheel's but the checkout's")
    command = str(Path(sys.executable).with_name("atomr-mp"))
    environment = {"PATH": os.environ["PATH"]}
    version = subprocess.run(
        [command, "version"], env=environment, cwd="/", capture_output=True, text=True, check=True, timeout=DEADLINE_S
    ).stdout
    if atomr_mp.__version__ not in version:
        sys.exit(f"release: `atomr-mp version` does not have {atomr_mp.__version__}:\n{version}")
    folder = Path(tempfile.mkdtemp(prefix="ar-", dir="/tmp"))
    try:
        (folder / "words.py").write_text(ACTOR, encoding="utf-8")
        options = ["--actor", f"{folder}/words.py:Words", "--backend", "host", "--gpus", "1", "--port", "0"]
        with _served([command, "serve", *options], {**environment, "TMPDIR": str(folder)}, folder) as (url, token):
            answer = _call(f"{url}/call/Words.length", token, {"word": "released"})
    finally:
        shutil.rmtree(folder)
    if answer != len("released"):
        sys.exit(f"release: Words.length answered {answer!r}")
    print(f"release: the wheel serves and answers, version {atomr_mp.__version__}")


@contextlib.contextmanager
def _served(command: list[str], environment: dict[str, str], folder: Path) -> Iterator[tuple[str, str]]:
    """Run the server; give its address and token, and end it in order."""
    with (folder / "errors").open("w+") as errors:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=errors)
        try:
            told = _told(process, "/call/")
            token, url = re.search(r"Bearer ([^']+)'", told), re.search(r"(http://[^/ ]+)/call/", told)
            if token is None or url is None:
                sys.exit(f"release: `atomr-mp serve` did not start: {told}{Path(errors.name).read_text()}")
            yield url[1], token[1]
            process.send_signal(signal.SIGTERM)
            if process.wait(DEADLINE_S) != 0:
                sys.exit(f"release: `atomr-mp serve` ended with {process.returncode}: {Path(errors.name).read_text()}")
        finally:
            process.kill()
            process.wait()


def _told(process: subprocess.Popen[bytes], text: str) -> str:
    """Read a process's output up to the line with a text; less if the process ends before, or time is over."""
    assert process.stdout is not None
    until = time.monotonic() + DEADLINE_S
    seen, poll = b"", select.poll()
    poll.register(process.stdout, select.POLLIN)
    while not (text.encode() in seen and seen.endswith(b"\n")):
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            break
        data = os.read(process.stdout.fileno(), 65536)
        if not data:
            break
        seen += data
    return seen.decode()


def _call(url: str, token: str, arguments: object) -> object:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(arguments).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return f"status {error.code}: {error.read().decode()}"


def show(file: Path) -> None:
    """Print an archive's name, size and digest, and of a wheel its metadata too."""
    content = file.read_bytes()
    print(f"{file}\n  {len(content):,} bytes, sha256 {hashlib.sha256(content).hexdigest()}")
    if file.suffix != ".whl":
        return
    metadata = _metadata(file)
    for name in ("Name", "Version", "Summary", "License-Expression", "Requires-Python"):
        print(f"  {name}: {metadata[name]}")
    needed = [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]
    print(f"  Requires-Dist: {', '.join(needed)}")
    print(f"  Provides-Extra: {', '.join(metadata.get_all('Provides-Extra', []))}")


def _metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return email.parser.BytesParser().parsebytes(archive.read(name))


if __name__ == "__main__":
    main(*sys.argv[1:])

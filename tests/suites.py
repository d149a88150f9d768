"""The long suites: `scripts/test` leaves out a suite whose files are as they were when it last passed.

`scripts/test --all` runs them all, and notes for each one that passes a digest of the files that it depends on: its own
file, the files that this one imports or names, the files that those import or name, and the files that `SUITES` adds.
A digest is of contents alone, so a note holds in every checkout. A suite without a note is run.

    python tests/suites.py    prints the suites that scripts/test would run now
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import json
import re
import subprocess
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
NOTES: Final = "tests/tested.json"
LIST: Final = "tests/suites.py"

MEMORY: Final = "workers/atomr_mp_workers/libraries/memory/*"
"""Is imported by its name, in every pool."""
PACKAGED: Final = ("LICENSE", "README.md", "pyproject.toml")

SUITES: Final[Mapping[str, tuple[str, ...]]] = {
    "tests/contract/libraries/test_lock.py": ("workers/atomr_mp_workers/libraries/*",),
    "tests/contract/project/test_chat_example.py": (),
    "tests/contract/project/test_demo.py": ("examples/data/*",),
    "tests/contract/project/test_embed_example.py": (),
    "tests/contract/project/test_notebook.py": ("docs/getting-started.md",),
    "tests/contract/project/test_release.py": (*PACKAGED, "scripts/release"),
    "tests/contract/project/test_site.py": ("*.md", "docs/*", "atomr_mp/*", "workers/*"),
    "tests/contract/serve/test_serve_container.py": (*PACKAGED, ".dockerignore", "docs/examples/Containerfile"),
    "tests/contract/serve/test_serve_described.py": (),
    "tests/contract/serve/test_serve_openai_clients.py": (),
    "tests/contract/serve/test_serve_pages.py": (),
    "tests/crash/services/test_ray_cluster.py": ("examples/data/*",),
    "tests/pure/ray/test_ray_classes.py": (),
}
"""Patterns of the files that a suite uses, but that no file names whole."""

IMPORT: Final = re.compile(r"^[ \t]*(?:from ([\w.]+) )?import (\([^)]*\)|.*)", re.MULTILINE)
PROGRAM: Final = re.compile(r"""-m["'], ["']([\w.]+)["']|["'](atomr_mp[._][\w.]+)["']""")
WORD: Final = re.compile(r"""["']([a-z][\w.]*)["']""")
FILE: Final = re.compile(r"""["'/]((?!__)[\w-]+\.\w+)[:"']""")
ROOTS: Final = ("", "workers/", "examples/", "scripts/")
"""Folders whose modules can be imported."""


class Sources:
    """The files of a checkout, each read once.

    Raises:
        OSError: There is no git.
        CalledProcessError: This is no checkout by git.
    """

    def __init__(self, root: Path = ROOT) -> None:
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
        self._root: Final = root
        self._files: Final = [name for name in names if name not in {"", NOTES, LIST} and (root / name).is_file()]
        self._modules: Final[dict[str, str]] = {}
        self._named: Final[dict[str, list[str]]] = {}
        for name in self._files:
            if not name.startswith(("atomr_mp/", "workers/")) or not name.endswith(".py"):
                self._named.setdefault(name.rpartition("/")[2], []).append(name)
            for folder in ROOTS:
                if name.startswith(folder) and name.endswith(".py"):
                    self._modules[name.removeprefix(folder).removesuffix(".py").replace("/", ".")] = name
        self._mentions: Final = functools.cache(lambda name: frozenset(self._imported_or_named(name)))

    def digest(self, suite: str) -> str:
        """Return a digest of the files that a suite depends on, and of the packages that the project asks for."""
        project = tomllib.loads((self._root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        found = hashlib.sha256(json.dumps(project, sort_keys=True).encode())
        for name in sorted(self.behind(suite)):
            found.update(f"{name} {hashlib.sha256((self._root / name).read_bytes()).hexdigest()}\n".encode())
        return found.hexdigest()

    def behind(self, suite: str) -> set[str]:
        """Return the files that a suite depends on."""
        around = (f"{folder}/{name}.py" for folder in Path(suite).parents for name in ("conftest", "__init__"))
        patterns = (*around, MEMORY, *SUITES.get(suite, ()))
        left = [suite, *(name for name in self._files for pattern in patterns if fnmatch.fnmatch(name, pattern))]
        found: set[str] = set()
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += self._mentions(name)
        return found

    def _imported_or_named(self, name: str) -> Iterator[str]:
        """Yield the files that a Python file imports or names, some of them more than once."""
        text = (self._root / name).read_text(encoding="utf-8") if name.endswith(".py") else ""
        for package, names in IMPORT.findall(text):
            yield from self._module(package)
            for module in re.findall(r"[\w.]+", re.sub(r"#.*|\bas \w+", "", names)):
                yield from self._module(f"{package}.{module}" if package else module)
        for module in map("".join, PROGRAM.findall(text)):
            yield from self._module(module)
            yield from self._module(f"{module}.__main__")
        if name.endswith("/__init__.py"):  # imports its modules by a name from a table
            package = name.removeprefix("workers/").removesuffix("/__init__.py").replace("/", ".")
            for module in WORD.findall(text):
                yield from self._module(f"{package}.{module}")
        for file in FILE.findall(text):
            yield from self._named.get(file, ())

    def _module(self, module: str) -> Iterator[str]:
        """Yield the files of a module, and of the packages that are imported with it."""
        parts = module.split(".")
        packages = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        for each in (module, *(f"{package}.__init__" for package in packages)):
            if each in self._modules:
                yield self._modules[each]


def digests() -> dict[str, str]:
    """Return the digest of each suite; of none where there is no git."""
    try:
        sources = Sources()
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {suite: sources.digest(suite) for suite in SUITES if (ROOT / suite).is_file()}


def noted() -> dict[str, str]:
    """Return the digests of the suites when they last passed."""
    try:
        found: dict[str, str] = json.loads((ROOT / NOTES).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # a merge may have left both sides in it
        return {}
    return found


@functools.cache
def unchanged() -> frozenset[str]:
    """Return the suites that `scripts/test` leaves out."""
    was = noted()
    return frozenset(suite for suite, digest in digests().items() if was.get(suite) == digest)


def note(passed: Collection[str], failed: Collection[str], before: Mapping[str, str]) -> None:
    """Note the suites that have passed, with their digests before that; drop the notes of those that failed."""
    kept = {suite: digest for suite, digest in noted().items() if suite in SUITES and suite not in failed}
    kept |= {suite: before[suite] for suite in passed if suite in before}
    (ROOT / NOTES).write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    print(*(suite for suite in SUITES if suite not in unchanged()), sep="\n")

"""Finds NVRTC, nvJitLink and the toolkit's headers, and tells one toolkit from another. An edge over files.

None of the libraries is loaded: a worker finds them, and only the compiler's process loads them. NVIDIA's wheels come
first, since they belong to this environment; then the toolkit that `CUDA_HOME` or `CUDA_PATH` names, or that of
/usr/local/cuda.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAJORS: Final = (13, 12)
"""Major versions of CUDA, the preferred first."""

HOW_TO_INSTALL: Final = (
    "NVRTC is not installed: run `pip install 'atomr-mp[nvrtc13]'`, or with nvrtc12 for a driver of CUDA 12"
)


@dataclass(frozen=True)
class Toolkit:
    """A compiler with all that belongs to it.

    Attributes:
        version: NVRTC's major and minor version.
        nvrtc: Its library.
        builtins: The library that NVRTC loads itself.
        nvjitlink: The linker's library, if there is one.
        includes: Folders of headers that sources may include.
        digest: Stands for the exact builds of the libraries, and for the headers.
    """

    version: tuple[int, int]
    nvrtc: Path
    builtins: Path
    nvjitlink: Path | None
    includes: tuple[Path, ...]
    digest: str


def find(most: int = MAJORS[0], places: Iterable[ToolkitPlace] | None = None) -> Toolkit | None:
    """Return the toolkit of the latest major version of CUDA, None if none is installed.

    Args:
        most: The latest major version that will do, which is the driver's.
        places: Where to look; None for everywhere.
    """
    looked_at = list(all_places() if places is None else places)
    for major in MAJORS:
        if major > most:
            continue
        for place in looked_at:
            found = _in_place(place, major, looked_at)
            if found is not None:
                return found
    return None


@dataclass(frozen=True)
class ToolkitPlace:
    """Where a toolkit, or a part of it, may be.

    Attributes:
        libraries: Folders of libraries.
        includes: Folders of headers that belong together: that of the runtime first, then others that may be missing.
    """

    libraries: tuple[Path, ...]
    includes: tuple[tuple[Path, ...], ...]


def all_places() -> Iterator[ToolkitPlace]:
    """Yield the places to look at, the preferred first."""
    for entry in sys.path:
        root = Path(entry, "nvidia")
        if entry and root.is_dir():
            yield wheels_of(root)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name, "").startswith("/"):
            yield installed_at(Path(os.environ[name]))
    yield installed_at(Path("/usr/local/cuda"))


def wheels_of(root: Path) -> ToolkitPlace:
    """Return the place of NVIDIA's wheels, below a folder `nvidia`: for CUDA 12 each has its own folder."""
    return ToolkitPlace(
        (root / "cu13/lib", root / "cuda_nvrtc/lib", root / "nvjitlink/lib"),
        (
            (root / "cu13/include", root / "cu13/include/cccl"),
            (root / "cuda_runtime/include", root / "cuda_cccl/include"),
        ),
    )


def installed_at(root: Path) -> ToolkitPlace:
    """Return the place of a toolkit that is installed as a whole."""
    return ToolkitPlace((root / "lib64", root / "lib"), ((root / "include", root / "include/cccl"),))


def _in_place(place: ToolkitPlace, major: int, others: Iterable[ToolkitPlace]) -> Toolkit | None:
    """Return the toolkit whose NVRTC is in a place; its other parts may be in other places."""
    nvrtc = _library([place], f"libnvrtc.so.{major}")
    if nvrtc is None:
        return None
    builtins = _builtins(nvrtc.parent, major)
    if builtins is None:
        return None
    path, version = builtins
    nvjitlink = _library([place, *others], f"libnvJitLink.so.{major}")
    headers = list(filter(None, (_includes(each, major) for each in [place, *others])))
    includes = next(filter(_are_whole, headers), headers[0] if headers else ())
    libraries = [each for each in (nvrtc, path, nvjitlink) if each is not None]
    return Toolkit(version, nvrtc, path, nvjitlink, includes, _digest(libraries, includes))


def _library(places: Iterable[ToolkitPlace], name: str) -> Path | None:
    for place in places:
        for folder in place.libraries:
            if (folder / name).is_file():
                return (folder / name).resolve()
    return None


def _builtins(folder: Path, major: int) -> tuple[Path, tuple[int, int]] | None:
    """Return the library that belongs to NVRTC, and the version that its name has."""
    for file in sorted(folder.glob(f"libnvrtc-builtins.so.{major}.*")):
        named = re.fullmatch(r"libnvrtc-builtins\.so\.([0-9]{1,3})\.([0-9]{1,3})", file.name)
        if named:
            return file, (int(named[1]), int(named[2]))
    return None


def _includes(place: ToolkitPlace, major: int) -> tuple[Path, ...]:
    """Return a place's folders of headers if they are of this major version, else none."""
    for runtime, *others in place.includes:
        if _headers_major(runtime) == major:
            return tuple(each.resolve() for each in (runtime, *others) if each.is_dir())
    return ()


def _are_whole(folders: Iterable[Path]) -> bool:
    """Return whether CCCL is among headers, which those of half precision and of cooperative groups include."""
    return any((folder / "nv/target").is_file() for folder in folders)


def _headers_major(folder: Path) -> int | None:
    """Return the major version of the runtime's headers in a folder, None if it has none."""
    try:
        with (folder / "cuda_runtime_api.h").open(encoding="utf-8", errors="replace") as file:
            text = file.read(_HEAD_CHARS)
    except OSError:
        return None
    told = re.search(r"#define CUDART_VERSION {1,8}([0-9]{4,6})\b", text)
    return int(told[1]) // 1000 if told else None


def _digest(libraries: Iterable[Path], includes: Iterable[Path]) -> str:
    """Return a digest of builds and headers; equal installations in several environments have the same."""
    parts = [f"{library.name} {_build_id(library)}" for library in libraries]
    for folder in includes:
        parts += sorted(_sizes(folder, ""))
        parts.append("")
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _sizes(folder: Path, within: str) -> Iterator[str]:
    """Yield the path and size of each header below a folder; CCCL has all of its headers in folders of its own."""
    with os.scandir(folder) as entries:
        for entry in entries:
            path = f"{within}{entry.name}"
            if entry.is_file():
                yield f"{path} {entry.stat().st_size}"
            elif entry.is_dir(follow_symlinks=False):
                yield from _sizes(folder / entry.name, f"{path}/")


def _build_id(library: Path) -> str:
    """Return the id that the linker gave a 64-bit ELF library; without one, its size and time stamp."""
    with library.open("rb") as file:
        head = file.read(_ELF_HEAD_BYTES)
        if head[:6] == b"\x7fELF\x02\x01":
            (at,) = struct.unpack_from("<Q", head, 32)
            size, count = struct.unpack_from("<HH", head, 54)
            for number in range(min(count, 64)):
                file.seek(at + number * size)
                segment = file.read(56)
                kind, offset, length = struct.unpack("<I4xQ16xQ16x", segment) if len(segment) == 56 else (0, 0, 0)
                if kind == _PT_NOTE:
                    file.seek(offset)
                    notes = file.read(min(length, _ELF_HEAD_BYTES))
                    begins = notes.find(_BUILD_ID_NOTE)
                    if begins >= 0:
                        begins += len(_BUILD_ID_NOTE)
                        return notes[begins : begins + 20].hex()
        found = os.fstat(file.fileno())
    return f"{found.st_size} {found.st_mtime_ns}"


_HEAD_CHARS: Final = 65536
_ELF_HEAD_BYTES: Final = 4096
_PT_NOTE: Final = 4
_BUILD_ID_NOTE: Final = b"\x14\0\0\0\x03\0\0\0GNU\0"
"""Length of the id, type of the note and its owner, see elf(5)."""

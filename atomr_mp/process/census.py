"""The pool as the kernel shows it: processes, descriptors, memory, sockets. An edge; it only reads.

All processes of this user are looked at, whoever their parent is by now. Those that end meanwhile are left out.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from atomr_mp import errors
from atomr_mp.process.files.events import read_events
from atomr_mp.process.files.rundir import EVENTS
from atomr_mp.process.gpus import nvml
from atomr_mp.process.identity import Identity, stat_fields
from atomr_mp.process.scheduling import standstill
from atomr_mp.protocol import process_tags
from atomr_mp.supervision.audit.observed import Memfd, Observed, Process, Socket, Worker

NVML_S: Final = 5.0
"""How long the driver may take."""


def look(run_dir: Path, *, gpus: bool) -> Observed:
    """Return the processes, slabs and sockets that were found.

    Args:
        run_dir: The pool's run directory, absolute.
        gpus: Whether the driver is asked too; at most `NVML_S` long.
    """
    slabs: dict[int, Memfd] = {}
    listening = _listening(run_dir)
    listeners: defaultdict[str, list[int]] = defaultdict(list)
    processes = {}
    lock = _identity(run_dir / "lock")
    supervisor = lock.pid if lock is not None else 0
    for pid in _pids():
        with contextlib.suppress(OSError):
            found = _process(pid, run_dir, slabs, listening, listeners)
            ours = found.marked or pid == supervisor
            processes[pid] = found._replace(standstill=standstill(pid)) if ours else found
    notes = {int(path.name): path for path in run_dir.glob("workers/*") if path.name.isdigit()}
    return Observed(
        processes,
        slabs,
        dict(_sockets(run_dir, listeners)),
        frozenset(notes),
        frozenset(pid for pid, path in notes.items() if (noted := _identity(path)) is not None and noted.alive()),
        _gpus() if gpus else {},
        supervisor,
        *_history(run_dir),
    )


def run_dirs() -> set[Path]:
    """Return the run directories that processes of pools name, whether or not a pool runs there."""
    prefix = f"{process_tags.RUN_DIR}=".encode()
    found = set()
    for pid in _pids():
        with contextlib.suppress(OSError):
            for each in _read(f"/proc/{pid}/environ").split(b"\0"):
                if each.startswith(prefix + b"/"):
                    found.add(Path(os.fsdecode(each.removeprefix(prefix))))
    return found


def _process(
    pid: int,
    run_dir: Path,
    slabs: dict[int, Memfd],
    listening: Mapping[str, str],
    listeners: Mapping[str, list[int]],
) -> Process:
    """Return a process's description; adds to what was found of slabs and of who listens."""
    fields = stat_fields(pid)
    started = _boot_time() + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    kinds: Counter[str] = Counter()
    watches, opened = [], set()
    for number, link in _descriptors(pid):
        kind = _kind(link)
        kinds[kind] += 1
        if kind == "pidfd":
            watches.append(_watched(pid, number))
        elif kind == "slab":
            found = Path(f"/proc/{pid}/fd/{number}").stat()
            slabs[found.st_ino] = Memfd(_memfd_name(link), found.st_size)
            opened.add(found.st_ino)
        elif link in listening:
            listeners[listening[link]].append(pid)
    mapped = dict(_mapped(pid))
    environment = _read(f"/proc/{pid}/environ").split(b"\0")
    marked = f"{process_tags.RUN_DIR}={run_dir}".encode() in environment
    for inode, slab in mapped.items():
        slabs.setdefault(inode, slab)
    return Process(
        pid=pid,
        start_ticks=int(fields[19]),
        parent=int(fields[1]),
        group=int(fields[2]),
        since=started,
        command=_command(pid),
        zombie=fields[0] == "Z",
        marked=marked,
        worker=_worker(environment) if marked else None,
        descriptors=kinds,
        watches=tuple(watches),
        opened=frozenset(opened),
        mapped=frozenset(mapped),
    )


def _worker(environment: list[bytes]) -> tuple[int, int] | None:
    prefix = f"{process_tags.WORKER}=".encode()
    for each in environment:
        if each.startswith(prefix) and (found := re.fullmatch(rb"(\d+)-(\d+)", each.removeprefix(prefix))):
            return int(found[1]), int(found[2])
    return None


def _pids() -> Iterator[int]:
    user = os.geteuid()
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                if path.stat().st_uid == user:
                    yield int(path.name)


def _descriptors(pid: int) -> Iterator[tuple[str, str]]:
    directory = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):  # it has ended, or may not be looked at
        for number in os.listdir(directory):  # noqa: PTH208 - as text, thousands of times
            with contextlib.suppress(OSError):
                yield number, os.readlink(f"{directory}/{number}")  # noqa: PTH115 - likewise


def _kind(link: str) -> str:
    """Return a descriptor's kind, in a word."""
    if link.startswith("/memfd:"):
        return "slab" if process_tags.owner(_memfd_name(link)) is not None else "memfd"
    if link.startswith("/"):
        return "gpu" if link.startswith("/dev/nvidia") else "file"
    name = link.partition("[")[2].rstrip("]") if link.startswith("anon_inode:[") else link.partition(":")[0]
    return name.removeprefix("anon_inode:")


def _memfd_name(path: str) -> str:
    return path.removeprefix("/memfd:").removesuffix(" (deleted)")


def _mapped(pid: int) -> Iterator[tuple[int, Memfd]]:
    """Yield the slabs that a process has mapped, by inode, with as many bytes as it has mapped of them."""
    sizes: Counter[tuple[int, str]] = Counter()
    for line in _read(f"/proc/{pid}/maps").decode("utf-8", "replace").splitlines():
        if (found := _SLAB_LINE.match(line)) is not None and process_tags.owner(found["name"]) is not None:
            sizes[int(found["inode"]), found["name"]] += int(found["end"], 16) - int(found["begin"], 16)
    for (inode, name), nbytes in sizes.items():
        yield inode, Memfd(name, nbytes)


def _watched(pid: int, number: str) -> int:
    """Return the process of a pidfd, or of its thread; -1 if it has been reaped."""
    found = re.search(rb"^Pid:\s*(-?\d+)", _read(f"/proc/{pid}/fdinfo/{number}"), re.MULTILINE)
    if found is None:
        return -1
    of = re.search(rb"^Tgid:\s*(\d+)", _read(f"/proc/{int(found[1])}/status"), re.MULTILINE)
    return int(of[1] if of else found[1])


def _listening(run_dir: Path) -> dict[str, str]:
    """Return the listening sockets, by their descriptors' links, with their names in the run directory."""
    found = {}
    for line in Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()[1:]:
        words = line.split(maxsplit=7)
        if len(words) == 8 and int(words[3], 16) & _ACCEPTS and Path(words[7]).parent == run_dir:
            found[f"socket:[{words[6]}]"] = Path(words[7]).name
    return found


def _sockets(run_dir: Path, listeners: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, Socket]]:
    for path in run_dir.glob("*.sock"):
        with contextlib.suppress(FileNotFoundError):
            yield path.name, Socket(path.lstat().st_mtime, tuple(listeners.get(path.name, ())))


def _gpus() -> dict[str, list[tuple[int, int]]]:
    """Ask the driver, in a thread that is abandoned if it does not answer."""
    result: Future[dict[str, list[tuple[int, int]]]] = Future()

    def ask() -> None:
        try:
            result.set_result(nvml.processes())
        except errors.ConfigurationError as error:
            result.set_exception(error)

    threading.Thread(target=ask, name="atomr-mp-nvml", daemon=True).start()
    try:
        return result.result(NVML_S)
    except (TimeoutError, errors.ConfigurationError):  # `atomr-mp version` says what is wrong with it
        return {}


def _history(run_dir: Path) -> tuple[str, dict[Worker, float]]:
    """Return the label of the pool's latest life, empty if that is not known, and when incarnations ended in it."""
    epoch, ended = "", dict[Worker, float]()
    with contextlib.suppress(OSError):
        for event in read_events(run_dir / EVENTS):
            match event:
                case {"event": "pool_start"}:
                    epoch, ended = str(event.get("epoch", "")), {}
                case {"event": "end" | "planned_end", "device": int(), "generation": int(), "time": float()}:
                    ended[int(event["device"] or 0), int(event["generation"] or 0)] = float(event["time"] or 0)
    return epoch, ended


def _identity(path: Path) -> Identity | None:
    try:
        return Identity.parse(path.read_text(encoding="ascii", errors="replace"))
    except OSError:
        return None


def _command(pid: int) -> str:
    words = _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace").split()
    text = " ".join(words)
    return text if len(text) <= _COMMAND_CHARS else f"{text[:_COMMAND_CHARS]}..."


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # it has ended, or may not be looked at
        return b""


def _boot_time() -> float:
    import psutil

    return float(psutil.boot_time())


_ACCEPTS: Final = 0x10000
"""__SO_ACCEPTCON, in the flags of /proc/net/unix."""
_COMMAND_CHARS: Final = 60
_SLAB_LINE: Final = re.compile(
    r"(?P<begin>[0-9a-f]+)-(?P<end>[0-9a-f]+) \S+ \S+ \S+ (?P<inode>\d+)\s+/memfd:(?P<name>atomr-mp-\S+) \(deleted\)"
)

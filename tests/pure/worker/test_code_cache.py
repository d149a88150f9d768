"""The disk cache of compiled code: what it returns was put, whatever happens to its files."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp_workers.compiling import entries
from atomr_mp_workers.compiling.cache import CodeCache, default_folder
from atomr_mp_workers.compiling.jobs import CodeKind, CompiledCode
from tests.support import Program

KEY: Final = "ab" * 32
OTHER: Final = "cd" * 32
CODE: Final = CompiledCode(CodeKind.CUBIN, b"code" * 100, {"k<float>": "_Z1kIfEvPT_"}, "k.cu(1): warning: unused")
PROGRAMS: Final = Path(__file__).parents[2] / "programs"


def entry_of(folder: Path, key: str = KEY) -> Path:
    """Return the path of an entry."""
    return folder / f"{key}.code"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that the cache makes."""
    return tmp_path / "below" / "kernels"


def test_what_was_put_is_returned_to_every_process(folder: Path) -> None:
    """Another object is another process for the cache, which keeps nothing in memory."""
    CodeCache(folder).put(KEY, CODE)
    assert CodeCache(folder).get(KEY) == CODE
    assert CodeCache(folder).get(OTHER) is None
    assert folder.stat().st_mode & 0o777 == 0o700
    assert entry_of(folder).stat().st_mode & 0o077 == 0


def test_the_folder_may_be_removed_at_any_time(folder: Path) -> None:
    """It is made anew."""
    cache = CodeCache(folder)
    folder.rmdir()
    assert cache.get(KEY) is None
    cache.put(KEY, CODE)
    assert cache.get(KEY) == CODE


@pytest.mark.parametrize("kind", ["open", "link", "file"])
def test_a_folder_that_is_not_private_is_refused(folder: Path, kind: str) -> None:
    """In words; nothing is written into it."""
    folder.parent.mkdir()
    if kind == "open":
        folder.mkdir(mode=0o755)
    elif kind == "link":
        (folder.parent / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(folder.parent / "elsewhere")
    else:
        folder.write_bytes(b"")
    with pytest.raises(errors.ConfigurationError, match="only you may enter"):
        CodeCache(folder)


@given(st.integers(0, 600), st.binary(max_size=20), st.integers(0, 700))
def test_a_damaged_entry_is_no_code(place: int, written: bytes, length: int) -> None:
    """Cut off, changed at any place, or longer: the checksum tells."""
    entry = entries.encode(KEY, CODE)
    assert entries.decode(KEY, entry) == CODE
    assert entries.decode(OTHER, entry) is None
    damaged = (entry[:place] + written + entry[place + len(written) :])[:length]
    assert (entries.decode(KEY, damaged) is None) == (damaged != entry)


@given(st.binary(max_size=300))
def test_any_bytes_are_an_entry_or_none(data: bytes) -> None:
    """Whoever wrote them."""
    assert entries.decode(KEY, data) is None


@pytest.mark.parametrize(
    "what", ["empty", "cut", "changed", "another's", "link", "fifo", "folder", "huge", "unreadable"]
)
def test_what_is_no_entry_of_its_key_is_a_miss_and_goes(folder: Path, what: str, tmp_path: Path) -> None:
    """No link is followed, nothing blocks, and what a link leads to stays."""
    cache = CodeCache(folder)
    cache.put(KEY, CODE)
    file = entry_of(folder)
    whole = file.read_bytes()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(whole)
    file.unlink()
    match what:
        case "link":
            file.symlink_to(elsewhere)
        case "fifo":
            os.mkfifo(file)
        case "folder":
            file.mkdir()
        case "huge":
            with file.open("wb") as opened:
                opened.truncate(2**40)
        case "another's":
            cache.put(OTHER, CODE)
            entry_of(folder, OTHER).rename(file)
        case "unreadable":
            file.write_bytes(whole)
            file.chmod(0)
            if os.geteuid() == 0:
                file.write_bytes(b"root reads what nobody may read")
        case _:
            file.write_bytes({"empty": b"", "cut": whole[:-1], "changed": whole[:-1] + b"?"}[what])
    assert cache.get(KEY) is None
    assert not os.path.lexists(file)
    assert elsewhere.read_bytes() == whole
    cache.put(KEY, CODE)
    assert cache.get(KEY) == CODE


def test_what_is_used_least_recently_is_evicted(folder: Path) -> None:
    """An entry that was read stays, and files that are not ours do, too."""
    size = len(entries.encode(KEY, CODE))
    cache = CodeCache(folder, most_bytes=size * 10)
    keys = [f"{number:064x}" for number in range(10)]
    for age, key in enumerate(keys):
        cache.put(key, CODE)
        os.utime(entry_of(folder, key), (1000 + age, 1000 + age))
    (folder / "notes.txt").write_bytes(b"x" * size * 20)
    assert cache.get(keys[0]) == CODE
    cache.put("f" * 64, CODE)
    left = {path.stem for path in folder.glob("*.code")}
    assert left == {keys[0], *keys[3:], "f" * 64}
    assert (folder / "notes.txt").exists()


def test_a_reader_keeps_what_is_evicted_under_it(folder: Path) -> None:
    """Its file lasts until it is closed."""
    cache = CodeCache(folder)
    cache.put(KEY, CODE)
    with entry_of(folder).open("rb") as opened:
        half = opened.read(100)
        cache.set_aside(KEY)
        entry_of(folder).unlink(missing_ok=True)
        assert entries.decode(KEY, half + opened.read()) == CODE


def test_files_that_a_writer_has_left_behind_go(folder: Path) -> None:
    """Once they are old: before, somebody may write on."""
    cache = CodeCache(folder)
    old, new = (folder / f"{KEY}.{digit * 16}.new" for digit in "01")
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1000, 1000))
    cache.put(OTHER, CODE)
    assert not old.exists()
    assert new.exists()


def test_a_code_too_large_is_not_kept(folder: Path) -> None:
    """It would evict all others."""
    cache = CodeCache(folder, most_bytes=300)
    cache.put(KEY, CODE)
    assert cache.get(KEY) is None


def test_a_disk_that_refuses_costs_the_entry_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, and nothing is left over."""
    cache = CodeCache(folder)

    def refuse(*_arguments: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        cache.put(KEY, CODE)
        cache.put(OTHER, CODE)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert list(folder.iterdir()) == []
    cache.put(KEY, CODE)
    assert cache.get(KEY) == CODE


def test_a_load_that_ends_leaves_no_marker(folder: Path) -> None:
    """Well or with an error: the process lives, so the entry stays."""
    cache = CodeCache(folder)
    cache.put(KEY, CODE)

    def load() -> None:
        with cache.loading(KEY):
            assert CodeCache(folder).get(KEY) == CODE, "another process may load it at the same time"
            raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        load()
    assert list((folder / "loading").iterdir()) == []
    assert cache.get(KEY) == CODE


def test_an_entry_whose_loader_died_is_set_aside(folder: Path) -> None:
    """Others stay, and a code that is compiled anew is served again."""
    cache = CodeCache(folder)
    cache.put(KEY, CODE)
    cache.put(OTHER, CODE)
    with Program(PROGRAMS / "code_loader.py", str(folder), KEY) as loader:
        assert loader.hear() == ["loading"]
        assert cache.get(KEY) == CODE, "it may still succeed"
        loader.kill()
    assert cache.get(KEY) is None
    assert (folder / f"{KEY}.aside").exists()
    assert cache.get(OTHER) == CODE
    cache.put(KEY, CODE)
    assert cache.get(KEY) == CODE


class Abuse:
    """Threads that write, read, evict and damage one entry at a time."""

    ROUNDS: Final = 1000

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._size = len(entries.encode(KEY, CODE))
        self._cache = CodeCache(folder, most_bytes=self._size * 3)
        self._ended = threading.Event()
        self.wrong: list[object] = []

    def run(self) -> None:
        """Have two write as often as there are rounds, and the others go on until then."""
        writers = [threading.Thread(target=self._write) for _ in range(2)]
        others = [threading.Thread(target=work) for work in (self._read, self._evict, self._corrupt)]
        for thread in writers + others:
            thread.start()
        for thread in writers:
            thread.join()
        self._ended.set()
        for thread in others:
            thread.join()

    def _write(self) -> None:
        for _ in range(self.ROUNDS):
            self._cache.put(KEY, CODE)

    def _read(self) -> None:
        while not self._ended.is_set():
            found = CodeCache(self._folder).get(KEY)
            if found not in (None, CODE):
                self.wrong.append(found)

    def _evict(self) -> None:
        for number in itertools.count():
            self._cache.put(f"{number % 7:064x}", CODE)
            if self._ended.is_set():
                return

    def _corrupt(self) -> None:
        for number in itertools.count():
            with contextlib.suppress(OSError), entry_of(self._folder).open("r+b") as opened:
                opened.seek(number % self._size)
                if number % 2:
                    opened.write(b"corrupt")
                else:
                    opened.truncate()
            if self._ended.is_set():
                return


def test_no_code_is_ever_wrong_whatever_is_done_to_it_at_a_time(folder: Path) -> None:
    """Two writers, a reader, an eviction and a corrupter on one key, 1,000 rounds: the right code, or none."""
    abuse = Abuse(folder)
    abuse.run()
    assert abuse.wrong == []
    cache = CodeCache(folder)
    cache.put(KEY, CODE)
    assert cache.get(KEY) == CODE


def test_the_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """XDG_CACHE_HOME names it, or ~/.cache does."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "atomr-mp" / "kernels"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_folder() == tmp_path / "home" / ".cache" / "atomr-mp" / "kernels"
